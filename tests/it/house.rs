//! The crate graph and a few rules that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Which of our crates each may name; see docs/ARCHITECTURE.md.
const GRAPH: [(&str, &[&str]); 12] = [
    ("core", &[]),
    ("seal", &[]),
    ("mcp", &["seal", "core"]),
    ("rpc", &["core"]),
    ("bus", &["core"]),
    ("policy", &["rpc", "bus", "core"]),
    ("taskstore", &["rpc", "bus", "seal", "core"]),
    ("worker", &["rpc", "core"]),
    ("gateway", &["mcp", "rpc", "bus", "policy", "seal", "core"]),
    ("runner", &["worker", "mcp", "policy", "core"]),
    ("cli", &["gateway", "runner", "taskstore", "worker", "policy", "mcp", "rpc", "bus", "seal", "core"]),
    ("tests", &["cli", "gateway", "runner", "taskstore", "worker", "policy", "mcp", "rpc", "bus", "seal", "core"]),
];

/// Libraries with one home: who may name them, beside the tests.
const HOMES: [(&str, &[&str]); 8] = [
    ("sqlx", &["taskstore"]),
    ("redis", &["bus"]),
    ("tonic", &["rpc"]),
    ("prost", &["rpc"]),
    ("axum", &["gateway", "cli"]),
    ("cedar-policy", &["policy"]),
    ("rmcp", &["runner"]),
    ("clap", &["cli"]),
];

/// What the pure crates may not name.
const IMPURE: [&str; 4] = ["tokio", "reqwest", "getrandom", "tracing"];

/// Our packages by their short name, each with the names of its normal dependencies.
fn packages() -> BTreeMap<String, BTreeSet<String>> {
    let root = root();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let name = text(&package["name"]);
            let short = name.strip_prefix("longhaul-").unwrap().to_owned();
            let folder = if short == "tests" { root.join("tests") } else { root.join("crates").join(&short) };
            assert_eq!(Path::new(package["manifest_path"].as_str().unwrap()).parent(), Some(folder.as_path()));
            let named = package["dependencies"].as_array().unwrap().iter();
            (short, named.filter(|dependency| dependency["kind"].is_null()).map(|one| text(&one["name"])).collect())
        })
        .collect()
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn arrows_between_our_crates_only_go_down() {
    let packages = packages();
    assert_eq!(packages.len(), GRAPH.len());
    for (name, allowed) in GRAPH {
        for ours in packages[name].iter().filter_map(|dependency| dependency.strip_prefix("longhaul-")) {
            assert!(allowed.contains(&ours), "{name} must not name {ours}");
        }
        for below in allowed {
            let rank = |wanted| GRAPH.iter().position(|(crate_name, _)| crate_name == wanted).unwrap();
            assert!(rank(below) < rank(&name), "the graph itself has an arrow up: {name} → {below}");
        }
    }
}

#[test]
fn each_library_stays_in_its_home() {
    for (name, dependencies) in packages() {
        for (library, homes) in HOMES {
            let family =
                |dependency: &&String| **dependency == library || dependency.starts_with(&format!("{library}-"));
            let named = dependencies.iter().any(|dependency| family(&dependency));
            assert!(!named || name == "tests" || homes.contains(&name.as_str()), "{name} must not name {library}");
        }
        if name == "core" || name == "mcp" {
            for library in IMPURE {
                assert!(!dependencies.contains(library), "{name} is pure and must not name {library}");
            }
        }
    }
}

/// Calls `visit` with each tracked or new file that git does not ignore.
fn each_file(mut visit: impl FnMut(&str, &str)) {
    let list =
        Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(root()).output().unwrap();
    assert!(list.status.success(), "the sources are a git checkout");
    for name in String::from_utf8(list.stdout).unwrap().lines() {
        if let Ok(text) = std::fs::read_to_string(root().join(name)) {
            visit(name, &text);
        }
    }
}

#[test]
fn nothing_is_left_to_do_and_no_path_of_one_machine_is_named() {
    // Written in two parts, so that this file does not find itself.
    let words = [["TO", "DO"], ["FIX", "ME"], ["unimplement", "ed!("], ["/wo", "rk/"], ["/ro", "ot/"]]
        .map(|parts| parts.concat());
    each_file(|name, text| {
        for word in &words {
            assert!(name.ends_with(".lock") || !text.contains(word), "{name} contains {word}");
        }
    });
}

#[test]
fn lock_files_name_no_registry_host() {
    each_file(|name, text| {
        if name.ends_with("package-lock.json") {
            assert!(!text.contains("\"resolved\""), "{name}: remove the `resolved` members");
        }
    });
}

#[test]
fn each_refusal_has_its_line_for_who_hears_it() {
    let source = std::fs::read_to_string(root().join("crates/core/src/refusal.rs")).unwrap();
    let page = std::fs::read_to_string(root().join("docs/REFUSALS.md")).unwrap();
    let told: String = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let names: BTreeSet<&str> =
        source.split("=> \"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(name, _)| name).collect();
    assert!(names.contains("data_policy") && names.contains("not_found"), "{names:?}");
    for name in names {
        assert!(told.contains(&format!("`{name}`")), "docs/REFUSALS.md does not tell of {name}");
    }
}
