//! What a call runs: the author's function and what goes with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;

use crate::answer::{Answer, Failure};
use crate::ask::Response;
use crate::context::Context;

pub(crate) type Handler = dyn Fn(Context, Bytes) -> BoxFuture<'static, Result<Answer, Failure>> + Send + Sync;
type CancelHook = dyn Fn(Context) -> BoxFuture<'static, ()> + Send + Sync;
type InputHook = dyn Fn(Context, String, Response) -> BoxFuture<'static, ()> + Send + Sync;

/// A function of a tool, a prompt, a resource or a completion.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) handler: Arc<Handler>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_cancel: Option<Arc<CancelHook>>,
    pub(crate) on_input: Option<Arc<InputHook>>,
}

impl Function {
    pub(crate) fn new(name: impl Into<String>, handler: Arc<Handler>) -> Self {
        Self { name: name.into(), handler, timeout: None, on_cancel: None, on_input: None }
    }

    pub(crate) async fn run(&self, context: Context, arguments: Bytes) -> Result<Answer, Failure> {
        (self.handler)(context, arguments).await
    }

    pub(crate) async fn cancelled(&self, context: Context) {
        if let Some(hook) = &self.on_cancel {
            hook(context).await;
        }
    }

    pub(crate) async fn answered(&self, context: Context, key: &str, response: &Response) {
        if let Some(hook) = &self.on_input {
            hook(context, key.to_owned(), response.clone()).await;
        }
    }
}

/// Reads arguments, or says which of them is bad.
pub(crate) fn read<A: DeserializeOwned>(arguments: &[u8]) -> Result<A, String> {
    let mut json = serde_json::Deserializer::from_slice(arguments);
    serde_path_to_error::deserialize(&mut json).map_err(|error| match error.path().to_string().as_str() {
        // The whole object: the message names the field that is missing or unknown.
        "." => format!("Invalid arguments: {}", error.inner()),
        field => format!("Invalid argument `{field}`: {}", error.inner()),
    })
}
