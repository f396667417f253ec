//! Which data may pass, in arguments and in results.
//!
//! A policy names what it looks for, where, and what becomes of it. Looked at is what strings say, however they are spelt, the
//! names of members too, and numbers. What is taken out leaves a mark; every other byte stays as it came.

mod detect;

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use longhaul_core::{Principal, Target};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::files::{LOOK, Texts, Watched};
use crate::glob;
use crate::json::{Said, Token, tokens, whole};
pub use detect::Detector;

/// Policies of one file.
const POLICIES_MAX: usize = 200;
/// Patterns of one policy.
const PATTERNS_MAX: usize = 100;
/// What a pattern may take once compiled, in bytes.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// The data policies in force.
#[derive(Debug)]
pub struct DataPolicies(Watched<Rules>);

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passage {
    /// What a caller sends.
    Arguments,
    /// What a tool answers.
    Results,
}

/// What is found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Clean,
    /// Something that has been taken out.
    Redacted(Bytes),
    /// Something that may not pass.
    Blocked,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    policies: Vec<Entry>,
}

/// A policy as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default = "everything")]
    tenants: Vec<String>,
    #[serde(default = "everything")]
    tools: Vec<String>,
    #[serde(default = "both")]
    on: Vec<Passage>,
    #[serde(default)]
    detect: Vec<String>,
    #[serde(default)]
    patterns: Vec<String>,
    action: Act,
}

fn everything() -> Vec<String> {
    vec!["*".into()]
}

fn both() -> Vec<Passage> {
    vec![Passage::Arguments, Passage::Results]
}

/// What becomes of what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Act {
    Allow,
    Redact,
    Block,
}

#[derive(Debug)]
struct Rule {
    tenants: Vec<String>,
    tools: Vec<String>,
    on: Vec<Passage>,
    detectors: Vec<Detector>,
    patterns: Vec<Regex>,
    act: Act,
}

/// The policies of a file; of those that look for the same, the first counts.
struct Rules(Vec<Rule>);

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} data policies", self.0.len())
    }
}

impl DataPolicies {
    /// The policies of a file; the error says what is wrong with it.
    pub fn read(file: &Path) -> Result<Self, String> {
        Watched::read("data_policies", file, Rules::parse).map(Self)
    }

    /// What is wrong with the file as it is now, if it cannot be used.
    pub fn stale(&self) -> Option<String> {
        self.0.stale()
    }

    /// Takes over what changes in the file.
    pub async fn follow(&self) -> Infallible {
        self.0.follow(LOOK).await
    }

    /// What of a JSON text may pass.
    pub fn screen(&self, passage: Passage, principal: &Principal, target: &Target, json: &Bytes) -> Verdict {
        self.0.load().screen(passage, principal.tenant.as_str(), target.name(), json)
    }
}

/// What is looked for.
enum Sought<'a> {
    Detector(Detector),
    Pattern(&'a Regex),
}

impl Sought<'_> {
    fn find(&self, text: &str, found: &mut Vec<Range<usize>>) {
        match self {
            Self::Detector(detector) => detector.find(text, found),
            // An empty match is nothing that could be taken out.
            Self::Pattern(regex) => {
                found.extend(regex.find_iter(text).map(|one| one.range()).filter(|one| !one.is_empty()))
            }
        }
    }

    const fn label(&self) -> &'static str {
        match self {
            Self::Detector(detector) => detector.name(),
            Self::Pattern(_) => "pattern",
        }
    }
}

impl Rules {
    fn parse(texts: &Texts) -> Result<Self, String> {
        let [(_, text)] = &**texts else { return Err("is a folder, not a file".into()) };
        let Document { policies } = toml::from_str(text).map_err(|error| error.to_string())?;
        if policies.len() > POLICIES_MAX {
            return Err(format!("more than {POLICIES_MAX} policies"));
        }
        policies.into_iter().map(rule).collect::<Result<_, _>>().map(Self)
    }

    /// What to look for, and what to do about it.
    fn sought(&self, passage: Passage, tenant: &str, name: &str) -> Vec<(Sought<'_>, Act)> {
        let (mut sought, mut decided) = (Vec::new(), Vec::new());
        for rule in &self.0 {
            if !rule.on.contains(&passage) || !glob::any(&rule.tenants, tenant) || !glob::any(&rule.tools, name) {
                continue;
            }
            for detector in &rule.detectors {
                if !decided.contains(detector) {
                    decided.push(*detector);
                    if rule.act != Act::Allow {
                        sought.push((Sought::Detector(*detector), rule.act));
                    }
                }
            }
            sought.extend(rule.patterns.iter().map(|pattern| (Sought::Pattern(pattern), rule.act)));
        }
        sought
    }

    fn screen(&self, passage: Passage, tenant: &str, name: &str, json: &Bytes) -> Verdict {
        let sought = self.sought(passage, tenant, name);
        if sought.is_empty() {
            return Verdict::Clean;
        }
        let mut cuts: Vec<(Range<usize>, String)> = Vec::new();
        let mut found = Vec::new();
        for token in tokens(json) {
            match token {
                Token::Open | Token::Close => {}
                Token::Key(place) | Token::Text(place) if place.len() <= 2 => {}
                Token::Key(ref place) | Token::Text(ref place) => {
                    let said = Said::string(json, place);
                    let start = cuts.len();
                    for (one, act) in &sought {
                        found.clear();
                        one.find(&said.text, &mut found);
                        if !found.is_empty() && *act == Act::Block {
                            return Verdict::Blocked;
                        }
                        for part in &found {
                            // Names of members must stay apart.
                            let nth = if matches!(token, Token::Key(_)) {
                                format!("-{}", cuts.len() + 1)
                            } else {
                                String::new()
                            };
                            cuts.push((said.place(part), format!("[redacted:{}{nth}]", one.label())));
                        }
                    }
                    cuts[start..].sort_by_key(|(place, _)| (place.start, std::cmp::Reverse(place.end)));
                }
                Token::Number(place) => {
                    let Some(text) = json.get(place.clone()).and_then(|text| std::str::from_utf8(text).ok()) else {
                        continue;
                    };
                    let text = text.strip_prefix('-').unwrap_or(text);
                    let whole = if text.contains(['.', 'e', 'E']) { whole(text) } else { None };
                    for (one, act) in &sought {
                        found.clear();
                        one.find(&Said::plain(text).text, &mut found);
                        if let Some(whole) = &whole {
                            one.find(whole, &mut found);
                        }
                        match (found.is_empty(), act) {
                            (true, _) | (false, Act::Allow) => {}
                            (false, Act::Block) => return Verdict::Blocked,
                            (false, Act::Redact) => {
                                cuts.push((place.clone(), format!("\"[redacted:{}]\"", one.label())));
                                break;
                            }
                        }
                    }
                }
            }
        }
        if cuts.is_empty() { Verdict::Clean } else { Verdict::Redacted(cut(json, &cuts)) }
    }
}

/// The text with each of these parts replaced; of parts that overlap, the first's mark stands for all.
fn cut(json: &[u8], cuts: &[(Range<usize>, String)]) -> Bytes {
    let (mut out, mut at) = (Vec::with_capacity(json.len()), 0);
    for (place, mark) in cuts {
        if place.start >= at {
            out.extend_from_slice(&json[at..place.start]);
            out.extend_from_slice(mark.as_bytes());
        }
        at = at.max(place.end);
    }
    out.extend_from_slice(&json[at..]);
    out.into()
}

fn rule(entry: Entry) -> Result<Rule, String> {
    let Entry { name, tenants, tools, on, detect, patterns, action: act } = entry;
    let wrong = |what: &str| format!("policy {name:?}: {what}");
    if detect.is_empty() && patterns.is_empty() {
        return Err(wrong("looks for nothing: detect or patterns is needed"));
    }
    if act == Act::Allow && !patterns.is_empty() {
        return Err(wrong("allow goes with detect only"));
    }
    if patterns.len() > PATTERNS_MAX {
        return Err(wrong("too many patterns"));
    }
    let mut detectors = Vec::new();
    for one in &detect {
        let named = Detector::named(one).ok_or_else(|| wrong(&format!("nothing is called {one:?}")))?;
        detectors.extend(named);
    }
    let compile = |pattern: &String| compile(pattern).map_err(|error| wrong(&error));
    let patterns = patterns.iter().map(compile).collect::<Result<_, _>>()?;
    Ok(Rule { tenants, tools, on, detectors, patterns, act })
}

/// An operator's pattern, which takes linear time.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
