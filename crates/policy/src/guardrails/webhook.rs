//! An external judge, asked over HTTP.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_core::{Caller, Principal};
use longhaul_rpc::Error;
use opentelemetry::metrics::Counter;
use opentelemetry::{KeyValue, global};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::chain::{Aim, Call};

/// The largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 64 * 1024;

/// How the judge is asked.
#[derive(Clone)]
pub struct WebhookConfig {
    /// Where.
    pub url: String,
    /// What is shown there: the value of `Authorization: Bearer`.
    pub token: Option<String>,
    /// How long one call may take.
    pub deadline: Duration,
    /// What a call is worth that could not be judged.
    pub on_failure: Failing,
    /// Calls that are judged at a time; more wait within their deadline.
    pub concurrency_max: usize,
}

impl std::fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookConfig({:?}, {:?})", self.deadline, self.on_failure)
    }
}

/// What becomes of a call that could not be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// It passes.
    Open,
    /// It does not: its caller is told to try again.
    Closed,
}

/// What the judge said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    Allowed,
    Blocked,
    /// Allowed, with these arguments.
    Replaced(Bytes),
}

#[derive(Debug)]
pub(super) struct Webhook {
    config: WebhookConfig,
    url: Url,
    client: Client,
    places: Semaphore,
    failures: Counter<u64>,
}

/// What a judge answers.
#[derive(Deserialize)]
struct Verdict<'a> {
    decision: Decision,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Block,
    Replace,
}

impl Webhook {
    pub(super) fn new(config: &WebhookConfig) -> Result<Self, String> {
        let url = Url::parse(&config.url).map_err(|error| format!("the webhook's URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("the webhook's URL is neither http nor https".into());
        }
        if config.deadline.is_zero() || config.concurrency_max == 0 {
            return Err("the webhook's deadline and its calls at a time must be above 0".into());
        }
        let client = Client::builder().redirect(Policy::none()).no_proxy().timeout(config.deadline).build();
        let client = client.map_err(|error| format!("the webhook: {error}"))?;
        let failures = global::meter("longhaul")
            .u64_counter("longhaul_guardrail_webhook_failures")
            .with_description("Calls that the external guardrail could not judge, by what became of them.")
            .build();
        let places = Semaphore::new(config.concurrency_max.min(Semaphore::MAX_PERMITS));
        Ok(Self { config: config.clone(), url, client, places, failures })
    }

    /// Asks about a call.
    pub(super) async fn ask(&self, principal: &Principal, call: &Call) -> Result<Judged, Error> {
        let judged = timeout(self.config.deadline, self.judged(principal, call)).await;
        let why = match judged.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(judged) => return Ok(judged),
            Err(why) => why,
        };
        let on_failure = match self.config.on_failure {
            Failing::Open => "open",
            Failing::Closed => "closed",
        };
        self.failures.add(1, &[KeyValue::new("on_failure", on_failure)]);
        tracing::debug!(why, on_failure, "the external guardrail cannot judge a call");
        match self.config.on_failure {
            Failing::Open => Ok(Judged::Allowed),
            Failing::Closed => Err(Error::Unavailable("the external guardrail cannot judge the call".into())),
        }
    }

    async fn judged(&self, principal: &Principal, call: &Call) -> Result<Judged, String> {
        let _place = self.places.acquire().await.map_err(|error| error.to_string())?;
        let arguments = std::str::from_utf8(&call.arguments).map_err(|error| error.to_string())?;
        let caller = match &principal.caller {
            Caller::Agent(agent) => json!({ "agent": agent }),
            Caller::Person { app, person } => json!({ "app": app, "person": person }),
        };
        // The arguments go as they came.
        let body = format!(
            r#"{{"tenant":{},"caller":{caller},"method":{},"tool":{},"source":{},"is_task":{},"arguments":{}}}"#,
            json!(principal.tenant.as_str()),
            json!(call.target.method()),
            json!(call.target.name()),
            json!(call.source.name()),
            matches!(call.aim, Aim::Task | Aim::Either),
            if arguments.is_empty() { "{}" } else { arguments },
        );
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(token) = &self.config.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| "the token cannot be a header")?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(|error| error.without_url().to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("status {}", response.status()));
        }
        let answer = body_of(response).await?;
        let verdict: Verdict<'_> = serde_json::from_slice(&answer).map_err(|error| format!("its answer: {error}"))?;
        match (verdict.decision, verdict.arguments) {
            (Decision::Allow, _) => Ok(Judged::Allowed),
            (Decision::Block, _) => Ok(Judged::Blocked),
            (Decision::Replace, Some(arguments))
                if arguments.get().starts_with('{') && arguments.get().len() <= PAYLOAD_BYTES_MAX =>
            {
                Ok(Judged::Replaced(Bytes::copy_from_slice(arguments.get().as_bytes())))
            }
            (Decision::Replace, _) => Err("it replaces the arguments by no object".into()),
        }
    }
}

async fn body_of(mut response: Response) -> Result<BytesMut, String> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err("its answer is too large".into());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
pub(super) mod tests {
    use longhaul_core::{Target, TenantId};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;
    use tokio_util::task::TaskTracker;

    use super::*;

    fn call() -> (Principal, Call) {
        let principal = Principal { tenant: TenantId::new("t\""), caller: Caller::Agent("a".into()) };
        let arguments = Bytes::from_static(br#"{ "n": 1.0 }"#);
        (principal, Call { target: Target::Tool("x".into()), arguments, aim: Aim::Task, source: crate::Source::Client })
    }

    fn config(url: String, on_failure: Failing) -> WebhookConfig {
        let token = Some("secret".into());
        WebhookConfig { url, token, deadline: Duration::from_secs(5), on_failure, concurrency_max: 1 }
    }

    /// A server that answers one request with `answer`, and tells what it was asked.
    pub(crate) async fn server(answer: String) -> (String, oneshot::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/judge", listener.local_addr().unwrap());
        let (tell, told) = oneshot::channel();
        TaskTracker::new().spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            tell.send(String::from_utf8(request).unwrap())
        });
        (url, told)
    }

    pub(crate) fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn the_judge_sees_the_call_and_what_it_says_counts() {
        let replaced = Bytes::from_static(br#"{"n" :2}"#);
        for (answer, judged) in [
            (r#"{"decision":"allow"}"#, Judged::Allowed),
            (r#"{"decision":"block","reason":"x"}"#, Judged::Blocked),
            (r#"{"decision":"replace","arguments":{"n" :2}}"#, Judged::Replaced(replaced)),
        ] {
            let (url, told) = server(ok(answer)).await;
            let (principal, call) = call();
            let webhook = Webhook::new(&config(url, Failing::Closed)).unwrap();
            assert_eq!(webhook.ask(&principal, &call).await.unwrap(), judged);
            let request = told.await.unwrap();
            assert!(request.contains("authorization: Bearer secret\r\n"), "{request}");
            let body = request.split_once("\r\n\r\n").unwrap().1;
            assert_eq!(
                body,
                r#"{"tenant":"t\"","caller":{"agent":"a"},"method":"tools/call","tool":"x","source":"client","is_task":true,"arguments":{ "n": 1.0 }}"#
            );
        }
    }

    #[tokio::test]
    async fn a_call_that_cannot_be_judged_passes_only_where_that_was_chosen() {
        let redirect = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_owned();
        let large = ok(&format!(r#"{{"decision":"allow","x":"{}"}}"#, "x".repeat(ANSWER_BYTES_MAX)));
        let failed = "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_owned();
        for answer in [
            redirect,
            large,
            failed,
            ok("{}"),
            ok("allow"),
            ok(r#"{"decision":"maybe"}"#),
            ok(r#"{"decision":"replace"}"#),
            ok(r#"{"decision":"replace","arguments":[]}"#),
        ] {
            for on_failure in [Failing::Open, Failing::Closed] {
                let (url, _told) = server(answer.clone()).await;
                let (principal, call) = call();
                let asked = Webhook::new(&config(url, on_failure)).unwrap().ask(&principal, &call).await;
                match on_failure {
                    Failing::Open => assert_eq!(asked.unwrap(), Judged::Allowed),
                    Failing::Closed => assert!(matches!(asked, Err(Error::Unavailable(_))), "{asked:?}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn a_judge_that_is_slow_or_busy_cannot_judge() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let config = WebhookConfig { deadline: Duration::from_millis(50), ..config(url, Failing::Closed) };
        let webhook = Webhook::new(&config).unwrap();
        let (principal, call) = call();
        let (first, second) = tokio::join!(webhook.ask(&principal, &call), webhook.ask(&principal, &call));
        assert!(matches!((first, second), (Err(Error::Unavailable(_)), Err(Error::Unavailable(_)))));
    }

    #[test]
    fn a_config_that_makes_no_sense_is_refused() {
        for url in ["", "ftp://x/", "nowhere"] {
            assert!(Webhook::new(&config(url.into(), Failing::Open)).is_err(), "{url}");
        }
        let printed = format!("{:?}", config("http://user:secret@x/".into(), Failing::Open));
        assert!(!printed.contains("secret"), "{printed}");
    }
}
