//! The order of the checks of a 2026-07-28 request: one fault at a time is told as itself,
//! and of two faults the earlier one.

use std::collections::BTreeMap;

use longhaul_mcp::v2026::{self, ParamHeaders};
use longhaul_mcp::{Era, Features, Header, Headers, Message, Rejection, Status, era, jsonrpc};
use serde_json::{Value, json};

const ALL: Features = Features { tasks: true, prompts: true, resources: true, completions: true };
const TOOL: &[u8] = br#"{"name":"query","inputSchema":{"type":"object","properties":{
    "region":{"type":"string","x-mcp-header":"Region"}}}}"#;
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A request on its way to us.
#[derive(Clone)]
struct Sent {
    headers: BTreeMap<&'static str, String>,
    body: Value,
    cut: bool,
}

impl Headers for Sent {
    fn header(&self, name: &str) -> Header<'_> {
        self.headers.get(name).map_or(Header::Absent, |value| Header::One(value))
    }
}

impl Sent {
    /// A good call of the tool.
    fn good() -> Self {
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "query"),
            ("mcp-param-region", "us-west1"),
        ];
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "query",
            "arguments": { "region": "us-west1" },
            "_meta": { VERSION: "2026-07-28", CAPABILITIES: {} },
        }});
        Self { headers: headers.map(|(name, value)| (name, value.to_owned())).into(), body, cut: false }
    }

    /// Through all checks, as the gateway makes them.
    fn outcome(&self) -> Result<(), (Status, i32, String)> {
        let told = |Rejection { status, error }: Rejection| (status, error.code, error.message.into_owned());
        let body = self.body.to_string();
        let body = if self.cut { &body[..body.len() - 1] } else { &*body };
        let message = jsonrpc::parse(body.as_bytes())
            .map_err(|wrong| (Status::BadRequest, wrong.error.code, wrong.error.message.into_owned()))?;
        assert_eq!(era(&message, self, false), Era::Modern);
        let Message::Request { method, params, .. } = message else { panic!("{body}") };
        let envelope = v2026::envelope(self, &method, &params).map_err(told)?;
        let request = v2026::read(&method, &params, &envelope, ALL).map_err(told)?;
        if let longhaul_mcp::Request::Call(call) = request {
            ParamHeaders::of(TOOL).check(self, &call.arguments).map_err(told)?;
        }
        Ok(())
    }
}

struct Fault {
    name: &'static str,
    expected: (Status, i32),
    make: fn(&mut Sent),
    /// What it touches: two faults of the same thing cannot be in one request. Without any word of its version a request is
    /// of the other era.
    touches: &'static [&'static str],
}

fn set(sent: &mut Sent, header: &'static str, value: &str) {
    sent.headers.insert(header, value.to_owned());
}

fn remove(object: &mut Value, name: &str) {
    object.as_object_mut().expect("an object").remove(name);
}

/// In the order of the checks.
const FAULTS: [Fault; 23] = {
    const BAD: Status = Status::BadRequest;
    [
        Fault { name: "no JSON", expected: (BAD, -32700), make: |sent| sent.cut = true, touches: &[] },
        Fault {
            name: "a null id",
            expected: (BAD, -32600),
            make: |sent| sent.body["id"] = Value::Null,
            touches: &["id"],
        },
        Fault {
            name: "no version header",
            expected: (BAD, -32020),
            make: |sent| drop(sent.headers.remove("mcp-protocol-version")),
            touches: &["era", "version header"],
        },
        Fault {
            name: "no method header",
            expected: (BAD, -32020),
            make: |sent| drop(sent.headers.remove("mcp-method")),
            touches: &["method header"],
        },
        Fault {
            name: "no name header",
            expected: (BAD, -32020),
            make: |sent| drop(sent.headers.remove("mcp-name")),
            touches: &["name header"],
        },
        Fault {
            name: "a malformed name header",
            expected: (BAD, -32020),
            make: |sent| set(sent, "mcp-name", "=?base64?SGVsbG8?="),
            touches: &["name header"],
        },
        Fault {
            name: "another method header",
            expected: (BAD, -32020),
            make: |sent| set(sent, "mcp-method", "TOOLS/CALL"),
            touches: &["method header"],
        },
        Fault {
            name: "another name header",
            expected: (BAD, -32020),
            make: |sent| set(sent, "mcp-name", "Query"),
            touches: &["name header"],
        },
        Fault {
            name: "a name header without a name",
            expected: (BAD, -32020),
            make: |sent| remove(&mut sent.body["params"], "name"),
            touches: &["name header", "name"],
        },
        Fault {
            name: "no version in _meta",
            expected: (BAD, -32602),
            make: |sent| remove(&mut sent.body["params"]["_meta"], VERSION),
            touches: &["era", "version in _meta"],
        },
        Fault {
            name: "a version in _meta that is no string",
            expected: (BAD, -32602),
            make: |sent| sent.body["params"]["_meta"][VERSION] = json!(20260728),
            touches: &["version in _meta"],
        },
        Fault {
            name: "no capabilities in _meta",
            expected: (BAD, -32602),
            make: |sent| remove(&mut sent.body["params"]["_meta"], CAPABILITIES),
            touches: &["capabilities"],
        },
        Fault {
            name: "capabilities that are no object",
            expected: (BAD, -32602),
            make: |sent| sent.body["params"]["_meta"][CAPABILITIES] = json!([]),
            touches: &["capabilities"],
        },
        Fault {
            name: "another version in the header",
            expected: (BAD, -32020),
            make: |sent| set(sent, "mcp-protocol-version", "2025-11-25"),
            touches: &["era", "version header"],
        },
        Fault {
            name: "an unknown version",
            expected: (BAD, -32022),
            make: |sent| {
                set(sent, "mcp-protocol-version", "2031-01-01");
                sent.body["params"]["_meta"][VERSION] = json!("2031-01-01");
            },
            touches: &["version header", "version in _meta"],
        },
        Fault {
            name: "a version with sessions",
            expected: (BAD, -32022),
            make: |sent| {
                set(sent, "mcp-protocol-version", "2025-11-25");
                sent.body["params"]["_meta"][VERSION] = json!("2025-11-25");
            },
            touches: &["version header", "version in _meta"],
        },
        Fault {
            name: "an unknown method",
            expected: (Status::NotFound, -32601),
            make: |sent| method(sent, "resources/subscribe"),
            touches: &["method", "method header", "name header"],
        },
        Fault {
            name: "a method of tasks without the extension",
            expected: (BAD, -32021),
            make: |sent| {
                method(sent, "tasks/get");
                sent.body["params"]["taskId"] = json!("a");
                set(sent, "mcp-name", "a");
            },
            touches: &["method", "method header", "name header"],
        },
        Fault {
            name: "a subscription to tasks without the extension",
            expected: (BAD, -32021),
            make: |sent| {
                method(sent, "subscriptions/listen");
                sent.body["params"]["notifications"] = json!({ "taskIds": [] });
            },
            touches: &["method", "method header", "name header"],
        },
        Fault {
            name: "another param header",
            expected: (BAD, -32020),
            make: |sent| set(sent, "mcp-param-region", "us-east1"),
            touches: &["method", "argument"],
        },
        Fault {
            name: "no param header",
            expected: (BAD, -32020),
            make: |sent| drop(sent.headers.remove("mcp-param-region")),
            touches: &["method", "argument"],
        },
        Fault {
            name: "an unknown log level",
            expected: (Status::Ok, -32602),
            make: |sent| sent.body["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = json!("loud"),
            touches: &["argument"],
        },
        Fault {
            name: "arguments that are no object",
            expected: (Status::Ok, -32602),
            make: |sent| sent.body["params"]["arguments"] = json!([]),
            touches: &["method", "argument"],
        },
    ]
};

fn method(sent: &mut Sent, method: &str) {
    sent.body["method"] = json!(method);
    set(sent, "mcp-method", method);
}

#[test]
fn a_good_request_passes() {
    assert_eq!(Sent::good().outcome(), Ok(()));
}

#[test]
fn a_fault_alone_is_told_as_itself() {
    for fault in &FAULTS {
        let mut sent = Sent::good();
        (fault.make)(&mut sent);
        let (status, code, _) = sent.outcome().unwrap_err();
        assert_eq!((status, code), fault.expected, "{}", fault.name);
    }
}

#[test]
fn of_two_faults_the_earlier_one_is_told() {
    let mut pairs = 0;
    for (at, first) in FAULTS.iter().enumerate() {
        for second in &FAULTS[at + 1..] {
            if first.touches.iter().any(|thing| second.touches.contains(thing)) {
                continue;
            }
            let mut alone = Sent::good();
            (first.make)(&mut alone);
            let mut both = alone.clone();
            (second.make)(&mut both);
            assert_eq!(both.outcome(), alone.outcome(), "{} and {}", first.name, second.name);
            pairs += 1;
        }
    }
    assert!(pairs > 150, "{pairs} pairs");
}

#[test]
fn a_version_that_differs_between_header_and_meta_is_a_mismatch_before_it_is_unknown() {
    let mut sent = Sent::good();
    set(&mut sent, "mcp-protocol-version", "2031-01-01");
    sent.body["params"]["_meta"][VERSION] = json!("2032-01-01");
    assert_eq!(sent.outcome().unwrap_err().1, -32020);
}

#[test]
fn without_meta_or_params_the_headers_are_read_first() {
    for params in [json!({ "name": "query" }), json!({ "name": "query", "_meta": [] })] {
        let mut sent = Sent::good();
        sent.body["params"] = params;
        let (status, code, _) = sent.outcome().unwrap_err();
        assert_eq!((status, code), (Status::BadRequest, -32602));
        sent.headers.remove("mcp-method");
        assert_eq!(sent.outcome().unwrap_err().1, -32020);
    }
}
