//! Names with `*` in them.

/// Whether `name` is what `glob` says: `*` stands for any text, everything else for itself.
pub fn matches(glob: &str, name: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Whether any of them does.
pub fn any(globs: &[String], name: &str) -> bool {
    globs.iter().any(|glob| matches(glob, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (glob, name, is_match) in [
            ("*", "", true),
            ("*", "x", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("files.*", "files.read", true),
            ("files.*", "files", false),
            ("*.read", "files.read", true),
            ("f*s.*d", "files.read", true),
            ("f*s.*d", "files.reads", false),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a**c", "abc", true),
        ] {
            assert_eq!(matches(glob, name), is_match, "{glob} {name}");
        }
    }
}
