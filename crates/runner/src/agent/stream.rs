//! One turn of a model over HTTP: streamed, bounded, and made again where that is right.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::{Client, Response, redirect};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::config::{Key, ProviderConfig, Speech};
use super::model::{ModelError, Said, Turn, Usage};
use super::{anthropic, openai};
use crate::upstream::sse::Events;

/// Calls in one answer of a model.
pub(super) const CALLS_MAX: usize = 64;
/// The largest event of a stream, and the largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence of a stream. Models think before their first word.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// How often a turn is asked for again before anything of it has come.
const RETRIES_MAX: u32 = 4;
/// How often a turn is asked for again that broke in the middle: what came of it is paid for.
const RESTARTS_MAX: u32 = 1;
/// The first pause before that; each next one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause that a provider may ask for; one that wants more counts as away.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest word of a provider's error that is shown.
const KIND_BYTES_MAX: usize = 64;
/// An error's body is read so far.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// What comes after an event.
pub(super) enum Flow {
    More,
    End,
}

/// What is wrong with a stream.
#[derive(Debug, PartialEq)]
pub(super) enum Odd {
    /// It ended too early.
    Cut,
    /// An event is not what the format has.
    Unreadable,
    /// More than fits.
    TooLarge,
    /// The provider says so itself; of which kind.
    Failed(String),
}

/// An answer that is being read.
pub(super) trait Reading: Default {
    /// The data of the next event.
    fn event(&mut self, data: &[u8]) -> Result<Flow, Odd>;
    /// What has come, in bytes.
    fn received(&self) -> usize;
    /// The whole answer, and whether the provider told its usage.
    fn finish(self) -> Result<(Said, bool), Odd>;
}

/// A model of a provider.
pub(crate) struct Remote {
    provider: String,
    speech: Speech,
    url: reqwest::Url,
    key: Option<Key>,
    tokens_key: String,
    model: String,
    client: Client,
}

/// Why a try came to nothing.
enum Try {
    /// Not begun: again, perhaps not before a while.
    Again {
        why: String,
        after: Option<Duration>,
    },
    /// Begun and lost.
    Broken {
        why: String,
        received: usize,
    },
    Refused(String),
}

impl Remote {
    pub(crate) fn new(config: &ProviderConfig, model: &str) -> Result<Self, String> {
        // A redirect would carry the key to somebody else.
        let client = Client::builder().redirect(redirect::Policy::none()).connect_timeout(CONNECT_TIMEOUT);
        Ok(Self {
            provider: config.name.clone(),
            speech: config.speaks,
            url: config.url()?,
            key: config.key()?,
            tokens_key: config.tokens_key.clone(),
            model: model.to_owned(),
            client: client.build().map_err(|error| error.to_string())?,
        })
    }

    /// Has the model go on. Dropped, the request is given up.
    pub(crate) async fn turn(&self, turn: &Turn<'_>) -> Result<Said, ModelError> {
        match self.speech {
            Speech::Openai => self.insist::<openai::Answer>(&openai::body(&self.model, &self.tokens_key, turn)).await,
            Speech::Anthropic => self.insist::<anthropic::Answer>(&anthropic::body(&self.model, turn)).await,
        }
    }

    async fn insist<R: Reading>(&self, body: &Value) -> Result<Said, ModelError> {
        let body = body.to_string();
        let (mut tries, mut restarts, mut lost) = (0, 0, Usage::default());
        let away = |why| ModelError::Away { provider: self.provider.clone(), why };
        loop {
            let (why, pause) = match self.once::<R>(&body).await {
                Ok(mut said) => {
                    said.usage.add(&lost);
                    return Ok(said);
                }
                Err(Try::Refused(why)) => return Err(ModelError::Refused { provider: self.provider.clone(), why }),
                Err(Try::Again { why, after }) => {
                    tries += 1;
                    if tries > RETRIES_MAX || after.is_some_and(|after| after > PAUSE_MAX) {
                        return Err(away(why));
                    }
                    (why, after.unwrap_or_else(|| jittered(PAUSE * 2_u32.pow(tries - 1))))
                }
                Err(Try::Broken { why, received }) => {
                    restarts += 1;
                    if restarts > RESTARTS_MAX {
                        return Err(away(why));
                    }
                    lost.add(&Usage::guess(body.len(), received));
                    (why, jittered(PAUSE))
                }
            };
            tracing::warn!(provider = self.provider, why, ?pause, "a model's turn is asked for again");
            sleep(pause).await;
        }
    }

    async fn once<R: Reading>(&self, body: &str) -> Result<Said, Try> {
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body.to_owned());
        let key = self.key.as_ref().map(Key::read).transpose().map_err(Try::Refused)?;
        let request = match (key, self.speech) {
            (None, Speech::Openai) => request,
            (Some(key), Speech::Openai) => request.bearer_auth(key.expose_secret()),
            (None, Speech::Anthropic) => request.header("anthropic-version", anthropic::VERSION),
            (Some(key), Speech::Anthropic) => request
                .header("anthropic-version", anthropic::VERSION)
                .header(HeaderName::from_static("x-api-key"), secret(&key)?),
        };
        let again = |why: &str| Try::Again { why: why.into(), after: None };
        let sent = timeout(SILENCE_MAX, request.send()).await.map_err(|_| again("it is silent"))?;
        // The error would name the URL, which may hold a secret.
        let mut response = sent.map_err(|error| again(if error.is_connect() { "no connection" } else { "cut off" }))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let (mut events, mut reading) = (Events::of_all_types(ANSWER_BYTES_MAX), R::default());
        loop {
            let broken = |why: &str, reading: &R| Try::Broken { why: why.into(), received: reading.received() };
            match timeout(SILENCE_MAX, response.chunk()).await {
                Err(_) => return Err(broken("it fell silent", &reading)),
                Ok(Err(_)) => return Err(broken("cut off", &reading)),
                Ok(Ok(None)) => return whole(reading, body.len()),
                Ok(Ok(Some(bytes))) => events.push(&bytes),
            }
            loop {
                match events.next() {
                    Ok(None) => break,
                    Err(_) => return Err(Try::Refused("an event is too large".into())),
                    Ok(Some(data)) => match reading.event(&data) {
                        Ok(Flow::More) if reading.received() > ANSWER_BYTES_MAX => {
                            return Err(Try::Refused("the answer is too large".into()));
                        }
                        Ok(Flow::More) => {}
                        Ok(Flow::End) => return whole(reading, body.len()),
                        Err(Odd::TooLarge) => return Err(Try::Refused("the answer is too large".into())),
                        // Nothing of it has come yet: as if it had been said at once.
                        Err(Odd::Failed(kind)) if reading.received() == 0 => return Err(again(&kind)),
                        Err(Odd::Failed(kind)) => return Err(broken(&kind, &reading)),
                        Err(Odd::Cut | Odd::Unreadable) => return Err(broken("it is not to be understood", &reading)),
                    },
                }
            }
        }
    }

    /// What an error's status says.
    async fn refused(&self, mut response: Response) -> Try {
        let (status, after) = (response.status(), pause(&response));
        let mut body = Vec::new();
        while let Ok(Ok(Some(bytes))) = timeout(CONNECT_TIMEOUT, response.chunk()).await {
            body.extend_from_slice(&bytes);
            if body.len() > ERROR_BYTES_MAX {
                break;
            }
        }
        let kind = serde_json::from_slice::<Value>(&body).ok().and_then(|body| body.get("error").map(kind_of));
        let why = match kind {
            Some(kind) => format!("{}: {kind}", status.as_u16()),
            None => status.as_u16().to_string(),
        };
        match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => {
                Try::Again { why, after }
            }
            status if status.is_server_error() => Try::Again { why, after },
            _ => {
                tracing::warn!(provider = self.provider, why, "a provider refused a request");
                Try::Refused(why)
            }
        }
    }
}

fn whole<R: Reading>(reading: R, sent: usize) -> Result<Said, Try> {
    let received = reading.received();
    match reading.finish() {
        Ok((mut said, is_told)) => {
            if !is_told {
                said.usage = Usage::guess(sent, received);
            }
            Ok(said)
        }
        Err(_) => Err(Try::Broken { why: "cut off".into(), received }),
    }
}

/// How long the provider wants to be left alone. A date is not honoured: clocks differ.
fn pause(response: &Response) -> Option<Duration> {
    let seconds: f64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Up to a quarter more, so that many do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without random numbers all pauses are alike, which is no harm.
    let _ = getrandom::fill(&mut byte);
    pause + pause * u32::from(byte[0]) / 1024
}

fn secret(key: &SecretString) -> Result<HeaderValue, Try> {
    let value = HeaderValue::try_from(key.expose_secret());
    let mut value = value.map_err(|_| Try::Refused("the key is none that a header can have".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Of which kind a provider's error is: one word. Its sentence may quote a key.
pub(super) fn kind_of(error: &Value) -> String {
    let word = |key: &str| error.get(key).and_then(Value::as_str);
    let is_word = |word: &&str| {
        word.len() <= KIND_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let kind = word("code").filter(is_word).or_else(|| word("type").filter(is_word));
    kind.unwrap_or("error").to_owned()
}
