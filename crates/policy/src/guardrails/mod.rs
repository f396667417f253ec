//! Which shape a call may have, and what an external judge says of it.

mod webhook;

use bytes::Bytes;
use longhaul_core::{Check, Denied, Principal};
use longhaul_rpc::Error;
use regex::Regex;

use crate::chain::{Call, denied};
use crate::data::compile;
use crate::json::{Said, Token, tokens};
#[cfg(test)]
pub(crate) use webhook::tests::{ok, server};
pub use webhook::{Failing, WebhookConfig};
use webhook::{Judged, Webhook};

/// Patterns that can be denied.
const PATTERNS_MAX: usize = 100;

/// What the arguments of a call may be; zero is no limit.
#[derive(Debug, Clone, Default)]
pub struct GuardrailsConfig {
    /// The largest arguments, in bytes.
    pub arguments_bytes_max: usize,
    /// How deep they may nest.
    pub depth_max: usize,
    /// Members of all their objects together.
    pub keys_max: usize,
    /// The longest string, in bytes as written.
    pub string_bytes_max: usize,
    /// What no string and no name of a member may match; linear-time regular expressions.
    pub deny_patterns: Vec<String>,
    /// An external judge.
    pub webhook: Option<WebhookConfig>,
}

/// The guardrails in force.
#[derive(Debug)]
pub struct Guardrails {
    config: GuardrailsConfig,
    denied: Vec<Regex>,
    webhook: Option<Webhook>,
}

impl Guardrails {
    /// Puts them together; the error says what is wrong with the config.
    pub fn new(config: GuardrailsConfig) -> Result<Self, String> {
        if config.deny_patterns.len() > PATTERNS_MAX {
            return Err(format!("more than {PATTERNS_MAX} patterns"));
        }
        let denied = config.deny_patterns.iter().map(|pattern| compile(pattern)).collect::<Result<_, _>>()?;
        let webhook = config.webhook.as_ref().map(Webhook::new).transpose()?;
        Ok(Self { config, denied, webhook })
    }

    /// Whether a call passes; if so, the arguments that the judge puts in the place of the caller's.
    pub(crate) async fn check(&self, principal: &Principal, call: &Call) -> Result<Option<Bytes>, Error> {
        self.shape(&call.arguments)?;
        let Some(webhook) = &self.webhook else { return Ok(None) };
        match webhook.ask(principal, call).await? {
            Judged::Allowed => Ok(None),
            Judged::Replaced(arguments) => Ok(Some(arguments)),
            Judged::Blocked => Err(no("A guardrail does not let this call pass: ask your operator")),
        }
    }

    /// Whether arguments have a shape that may pass.
    pub(crate) fn shape(&self, arguments: &[u8]) -> Result<(), Error> {
        let GuardrailsConfig { arguments_bytes_max, depth_max, keys_max, string_bytes_max, .. } = &self.config;
        let over = |max: &usize, value: usize| *max != 0 && value > *max;
        if over(arguments_bytes_max, arguments.len()) {
            return Err(no("The arguments are too large: send less"));
        }
        let looks_inside = [depth_max, keys_max, string_bytes_max].iter().any(|max| **max != 0);
        if !looks_inside && self.denied.is_empty() {
            return Ok(());
        }
        let (mut depth, mut keys) = (0_usize, 0_usize);
        for token in tokens(arguments) {
            match token {
                Token::Open => depth += 1,
                Token::Close => depth = depth.saturating_sub(1),
                Token::Number(_) => {}
                Token::Key(ref place) | Token::Text(ref place) => {
                    keys += usize::from(matches!(token, Token::Key(_)));
                    if over(string_bytes_max, place.len().saturating_sub(2)) {
                        return Err(no("A string in the arguments is too long: send less"));
                    }
                    if !self.denied.is_empty() {
                        let said = Said::string(arguments, place);
                        if self.denied.iter().any(|pattern| pattern.is_match(&said.text)) {
                            return Err(no("A guardrail does not let these arguments pass: ask your operator"));
                        }
                    }
                }
            }
            if over(depth_max, depth) {
                return Err(no("The arguments nest too deep: send a flatter object"));
            }
            if over(keys_max, keys) {
                return Err(no("The arguments have too many members: send fewer"));
            }
        }
        Ok(())
    }
}

fn no(message: &str) -> Error {
    denied(Denied { by: Check::Guardrail, message: message.into(), retry_after: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_a_size_a_depth_members_and_strings() {
        let config = GuardrailsConfig {
            arguments_bytes_max: 60,
            depth_max: 2,
            keys_max: 3,
            string_bytes_max: 10,
            deny_patterns: vec!["(?i)drop +table".into()],
            webhook: None,
        };
        let guardrails = Guardrails::new(config).unwrap();
        for (arguments, refused) in [
            (r#"{}"#, None),
            (r#"{"a":{"b":1,"c":2}}"#, None),
            (r#"{"a":"0123456789"}"#, None),
            (r#"{"a":"01234567890"}"#, Some("too long")),
            (r#"{"a":[[]]}"#, Some("too deep")),
            (r#"{"a":1,"b":2,"c":3,"d":4}"#, Some("too many members")),
            (r#"{"a":"Drop table"}"#, Some("guardrail")),
            (r#"{"drop table":1}"#, Some("guardrail")),
            (r#"{"a":"0123456","b":"0123456","c":[1,2,3,4,5,6,7,8,9,10,11,12]}"#, Some("too large")),
        ] {
            let said = guardrails.shape(arguments.as_bytes()).err().map(|error| error.to_string());
            match refused {
                None => assert_eq!(said, None, "{arguments}"),
                Some(what) => assert!(said.as_ref().is_some_and(|said| said.contains(what)), "{arguments}: {said:?}"),
            }
        }
        let loose = Guardrails::new(GuardrailsConfig::default()).unwrap();
        assert!(loose.shape(&[b'['; 100_000]).is_ok());
        assert!(Guardrails::new(GuardrailsConfig { deny_patterns: vec!["(".into()], ..Default::default() }).is_err());
        let escaped = GuardrailsConfig { deny_patterns: vec!["^secret$".into()], ..Default::default() };
        assert!(Guardrails::new(escaped).unwrap().shape(br#"["s\u0065cret"]"#).is_err());
    }
}
