//! How a server is met: what it speaks and what it can do.

use bytes::Bytes;
use longhaul_core::limits::cut;
use longhaul_core::{CallError, ClientCapabilities};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::request::capabilities;
use super::{
    Answer, HEADER_MISMATCH, Listing, MISSING_CAPABILITY, MODERN_VERSION, Outgoing, UNSUPPORTED_VERSION, VERSION,
    message, raw,
};

/// Those that a server may choose in `initialize`; for what we do they are the same.
const VERSIONS: [&str; 4] = [VERSION, "2025-06-18", "2025-03-26", "2024-11-05"];
/// What sessions of one caller are promised: whoever calls is asked, if their client can be.
pub(crate) const PROMISED: ClientCapabilities =
    ClientCapabilities { elicitation_form: true, elicitation_url: true, sampling: true, roots: true };

/// Which kind of MCP a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// 2025-11-25 and before.
    Sessions,
    /// 2026-07-28.
    Modern,
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hello {
    pub(crate) era: Era,
    pub(crate) version: String,
    pub(crate) abilities: Abilities,
}

/// What a server can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Abilities {
    tools: bool,
    tools_change: bool,
    prompts: bool,
    prompts_change: bool,
    resources: bool,
    resources_change: bool,
    /// It says when a resource has changed.
    pub(crate) subscribe: bool,
    pub(crate) completions: bool,
    pub(crate) logging: bool,
}

/// What came of asking whether a server is of 2026-07-28.
#[derive(Debug, PartialEq)]
pub(crate) enum Discovered {
    /// It is.
    Modern(Hello),
    /// It is not, or speaks the older versions too and not this one.
    Sessions,
    /// It speaks nothing that we do; the rest of a sentence that begins with the server.
    Foreign(String),
}

impl Abilities {
    /// Whether it has such a list.
    pub(crate) fn has(&self, listing: Listing) -> bool {
        match listing {
            Listing::Tools => self.tools,
            Listing::Prompts => self.prompts,
            Listing::Resources | Listing::Templates => self.resources,
        }
    }

    /// Which lists it says may change. Those of resources and of templates are one.
    pub(crate) fn changing(&self) -> Vec<Listing> {
        let all = [
            (Listing::Tools, self.tools_change),
            (Listing::Prompts, self.prompts_change),
            (Listing::Resources, self.resources_change),
        ];
        all.into_iter().filter_map(|(listing, changes)| changes.then_some(listing)).collect()
    }

    fn read(capabilities: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Members {
            tools: Option<Feature>,
            prompts: Option<Feature>,
            resources: Option<Feature>,
            completions: Option<serde::de::IgnoredAny>,
            logging: Option<serde::de::IgnoredAny>,
        }
        #[derive(Deserialize, Clone, Copy, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Feature {
            list_changed: bool,
            subscribe: bool,
        }
        let members: Members = serde_json::from_str(capabilities.get()).ok()?;
        let resources = members.resources.unwrap_or_default();
        Some(Self {
            tools: members.tools.is_some(),
            tools_change: members.tools.unwrap_or_default().list_changed,
            prompts: members.prompts.is_some(),
            prompts_change: members.prompts.unwrap_or_default().list_changed,
            resources: members.resources.is_some(),
            resources_change: resources.list_changed,
            subscribe: resources.subscribe,
            completions: members.completions.is_some(),
            logging: members.logging.is_some(),
        })
    }
}

/// `initialize`; `client` is what the server may ask for.
pub(crate) fn initialize(id: u64, client: ClientCapabilities) -> Bytes {
    let info = json!({ "name": "longhaul", "version": env!("CARGO_PKG_VERSION") });
    let params = json!({ "protocolVersion": VERSION, "capabilities": capabilities(client), "clientInfo": info });
    let id = raw(&id);
    message(&Outgoing::<'_, _, ()> {
        id: Some(&id),
        method: Some("initialize"),
        params: Some(&params),
        ..Outgoing::new()
    })
}

/// `notifications/initialized`
pub(crate) fn initialized() -> Bytes {
    message(&Outgoing::<'_, (), ()> { method: Some("notifications/initialized"), ..Outgoing::new() })
}

/// Reads the result of `initialize`; the error is a sentence about the server.
pub(crate) fn read_hello(result: &[u8]) -> Result<Hello, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        protocol_version: String,
        #[serde(borrow)]
        capabilities: &'a RawValue,
    }
    let read = |result| {
        let hello: Members<'_> = serde_json::from_slice(result).ok()?;
        Some((hello.protocol_version, Abilities::read(hello.capabilities)?))
    };
    let (version, abilities) = read(result).ok_or("does not introduce itself as MCP asks")?;
    if !VERSIONS.contains(&&*version) {
        return Err(foreign(&[version]));
    }
    Ok(Hello { era: Era::Sessions, version, abilities })
}

/// Reads the answer to `server/discover` (MCP 2026-07-28, basic/versioning, "Backward Compatibility").
pub(crate) fn read_discovered(answer: &Answer) -> Discovered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        supported_versions: Vec<String>,
        #[serde(borrow)]
        capabilities: &'a RawValue,
    }
    let (versions, abilities) = match answer {
        Ok(result) => {
            let read = serde_json::from_slice::<Members<'_>>(result).ok();
            match read.and_then(|hello| Some((Abilities::read(hello.capabilities)?, hello.supported_versions))) {
                Some((abilities, versions)) => (versions, Some(abilities)),
                None => return Discovered::Sessions,
            }
        }
        Err(error) if error.code == UNSUPPORTED_VERSION => (supported(error), None),
        Err(error) if matches!(error.code, HEADER_MISMATCH | MISSING_CAPABILITY) => {
            return Discovered::Foreign(format!("refuses: {} ({})", cut(&error.message, 200), error.code));
        }
        Err(_) => return Discovered::Sessions,
    };
    match abilities {
        Some(abilities) if versions.iter().any(|version| version == MODERN_VERSION) => {
            Discovered::Modern(Hello { era: Era::Modern, version: MODERN_VERSION.into(), abilities })
        }
        _ if versions.iter().any(|version| VERSIONS.contains(&&**version)) => Discovered::Sessions,
        _ => Discovered::Foreign(foreign(&versions)),
    }
}

/// The versions that an error names.
fn supported(error: &CallError) -> Vec<String> {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let data = error.data.as_ref().and_then(|data| serde_json::from_slice::<Data>(data).ok());
    data.map(|data| data.supported).unwrap_or_default()
}

fn foreign(versions: &[String]) -> String {
    format!("speaks MCP {:?}, which we do not", cut(&versions.join(", "), 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_another_age_is_refused_by_name() {
        let hello = |version: &str| {
            read_hello(format!(r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}}}}"#).as_bytes())
        };
        let abilities = Abilities { tools: true, ..Abilities::default() };
        assert_eq!(hello("2025-06-18"), Ok(Hello { era: Era::Sessions, version: "2025-06-18".into(), abilities }));
        assert!(hello("1999-01-01").unwrap_err().contains("1999-01-01"));
        assert!(read_hello(br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":1}}"#).is_err());
    }

    #[test]
    fn what_a_server_can_do_is_read() {
        let capabilities =
            r#"{"prompts":{},"resources":{"subscribe":true,"listChanged":true},"logging":{},"tasks":{}}"#;
        let read = Abilities::read(&RawValue::from_string(capabilities.into()).unwrap()).unwrap();
        assert_eq!(
            [Listing::Tools, Listing::Prompts, Listing::Resources, Listing::Templates].map(|listing| read.has(listing)),
            [false, true, true, true]
        );
        assert_eq!(read.changing(), [Listing::Resources]);
        assert_eq!((read.subscribe, read.completions, read.logging), (true, false, true));
    }

    #[test]
    fn only_a_recognised_answer_makes_a_server_modern() {
        let answer = |versions: &str| {
            Ok(format!(r#"{{"resultType":"complete","supportedVersions":[{versions}],"capabilities":{{}}}}"#).into())
        };
        let error =
            |code, data: &str| Err(CallError { code, message: "no".into(), data: Some(data.to_owned().into()) });
        let modern = |answer| matches!(read_discovered(&answer), Discovered::Modern(hello) if hello.era == Era::Modern);
        assert!(modern(answer(r#""2027-01-01","2026-07-28""#)));
        for sessions in [
            answer(r#""2025-11-25""#),
            Ok("{}".into()),
            Ok("[]".into()),
            error(-32601, "{}"),
            error(-32000, "{}"),
            error(-32022, r#"{"supported":["2025-06-18"]}"#),
        ] {
            assert_eq!(read_discovered(&sessions), Discovered::Sessions, "{sessions:?}");
        }
        for foreign in [answer(r#""2027-01-01""#), error(-32022, r#"{"supported":["2027-01-01"]}"#)] {
            let Discovered::Foreign(why) = read_discovered(&foreign) else { panic!("{foreign:?}") };
            assert!(why.contains("2027-01-01"), "{why}");
        }
        assert!(matches!(read_discovered(&error(-32020, "{}")), Discovered::Foreign(_)));
    }
}
