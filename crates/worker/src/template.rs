//! URI templates of level 1 (RFC 6570): text and `{names}`.

use std::collections::HashMap;

/// A template that can be matched.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    /// What comes before the first variable.
    head: String,
    /// Each variable, with what comes after it.
    variables: Vec<(String, String)>,
}

impl Template {
    /// Reads a template, or says why it cannot be matched.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut parts = text.split('{');
        let head = parts.next().unwrap_or_default().to_owned();
        let mut variables: Vec<(String, String)> = Vec::new();
        for part in parts {
            let (name, after) = part.split_once('}').ok_or("a brace is not closed")?;
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.is_empty() || !name.bytes().all(fits) {
                return Err(format!("`{{{name}}}` is no plain variable: use letters, digits and _"));
            }
            if variables.iter().any(|(known, _)| known == name) {
                return Err(format!("`{{{name}}}` is there twice"));
            }
            if variables.last().is_some_and(|(_, between)| between.is_empty()) {
                return Err(format!("something must be between `{{{name}}}` and the variable before it"));
            }
            variables.push((name.to_owned(), after.to_owned()));
        }
        if variables.is_empty() {
            return Err("it has no variable".into());
        }
        if head.contains('}') || variables.iter().any(|(_, after)| after.contains('}')) {
            return Err("a brace is not opened".into());
        }
        Ok(Self { head, variables })
    }

    /// The variables of a URI that the template describes: none of them empty, and decoded.
    pub(crate) fn variables(&self, uri: &str) -> Option<HashMap<String, String>> {
        let mut rest = uri.strip_prefix(&self.head)?;
        let mut found = HashMap::new();
        for (at, (name, after)) in self.variables.iter().enumerate() {
            // The first place that fits is enough, since a variable may hold whatever another may.
            let value = if at + 1 == self.variables.len() {
                let value = rest.strip_suffix(after.as_str())?;
                rest = "";
                value
            } else {
                let first = rest.chars().next()?.len_utf8();
                let end = first + rest.get(first..)?.find(after.as_str())?;
                let value = &rest[..end];
                rest = &rest[end + after.len()..];
                value
            };
            found.insert(name.clone(), decode(value)?);
        }
        Some(found)
    }
}

/// The value of a variable, unless it is empty or has characters that simple expansion would have encoded.
fn decode(value: &str) -> Option<String> {
    let mut bytes = value.bytes();
    let mut decoded = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'-' | b'.' | b'_' | b'~' => byte,
            byte if byte.is_ascii_alphanumeric() || !byte.is_ascii() => byte,
            _ => return None,
        });
    }
    let decoded = String::from_utf8(decoded).ok()?;
    (!decoded.is_empty()).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_finds_its_variables_in_the_uris_it_describes() {
        type Case<'a> = (&'a str, &'a str, Option<&'a [(&'a str, &'a str)]>);
        let cases: [Case<'_>; 13] = [
            ("test://{id}/data", "test://42/data", Some(&[("id", "42")])),
            ("test://{id}/data", "test://a%2Fb%20c/data", Some(&[("id", "a/b c")])),
            ("test://{id}/data", "test://é/data", Some(&[("id", "é")])),
            ("test://{id}/data", "test:///data", None),
            ("test://{id}/data", "test://a/b/data", None),
            ("test://{id}/data", "test://a/data/", None),
            ("test://{id}/data", "test://%zz/data", None),
            ("test://{id}/data", "test://%ff/data", None),
            ("{a}-{b}", "x-y-z", Some(&[("a", "x"), ("b", "y-z")])),
            ("{a}-end", "x-end-end", Some(&[("a", "x-end")])),
            ("log://{day}/{line}", "log://mon/", None),
            ("log://{day}/{line}", "log://mon/7", Some(&[("day", "mon"), ("line", "7")])),
            ("{a}-{b}", "--", None),
        ];
        for (template, uri, variables) in cases {
            let found = Template::read(template).unwrap().variables(uri);
            let expected = variables.map(|all| all.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
            assert_eq!(found, expected, "{template} {uri}");
        }
    }

    #[test]
    fn a_template_that_cannot_be_matched_says_why() {
        for bad in ["plain", "{", "a}b{c}", "{}", "{+path}", "{a,b}", "{a}{b}", "{a}/{a}", "{a}/}", "x{a:3}"] {
            assert!(Template::read(bad).is_err(), "{bad}");
        }
    }
}
