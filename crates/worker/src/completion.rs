//! Completing what people type as arguments of prompts and variables of URI templates (MCP 2025-11-25,
//! server/utilities/completion).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{Answer, Failure, INVALID_PARAMS};
use crate::context::Context;
use crate::function::{Function, Handler, read};

/// Values of one answer (MCP 2025-11-25 schema, `CompleteResult`).
const VALUES_MAX: usize = 100;

type Completer = dyn Fn(Context, String, HashMap<String, String>) -> BoxFuture<'static, Vec<String>> + Send + Sync;

/// How the arguments of one prompt, or the variables of one template, are completed.
#[derive(Clone, Default)]
pub(crate) struct Completions {
    by_argument: HashMap<String, Arc<Completer>>,
    raw: Option<Arc<Handler>>,
}

/// What is to be completed (MCP 2025-11-25 schema, `CompleteRequestParams`).
#[derive(Deserialize)]
struct Wanted {
    argument: Argument,
    #[serde(default)]
    context: Given,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
struct Given {
    #[serde(default)]
    arguments: HashMap<String, String>,
}

impl Completions {
    pub(crate) fn add<F, R>(&mut self, argument: String, complete: F)
    where
        F: Fn(Context, String, HashMap<String, String>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<String>> + Send + 'static,
    {
        let complete =
            move |context, value, given| -> BoxFuture<'static, _> { Box::pin(complete(context, value, given)) };
        self.by_argument.insert(argument, Arc::new(complete));
    }

    pub(crate) fn set_raw<F, R>(&mut self, complete: F)
    where
        F: Fn(Context, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        let complete = move |context, wanted| -> BoxFuture<'static, _> {
            let completing = complete(context, wanted);
            Box::pin(async { completing.await.and_then(Answer::raw).map_err(Failure::into_protocol) })
        };
        self.raw = Some(Arc::new(complete));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_argument.is_empty() && self.raw.is_none()
    }

    /// The function that completes; `name` is what it belongs to.
    pub(crate) fn function(&self, name: &str) -> Function {
        if let Some(raw) = &self.raw {
            return Function::new(name, raw.clone());
        }
        let by_argument = self.by_argument.clone();
        let handler = move |context, wanted: Bytes| -> BoxFuture<'static, _> {
            let wanted = read::<Wanted>(&wanted).map_err(|why| Failure::protocol(INVALID_PARAMS, why));
            let completing = wanted.map(|Wanted { argument: Argument { name, value }, context: given }| {
                by_argument.get(&name).map(|complete| complete(context, value, given.arguments))
            });
            Box::pin(async {
                let mut values = match completing? {
                    Some(completing) => completing.await,
                    None => Vec::new(),
                };
                let total = values.len();
                values.truncate(VALUES_MAX);
                let completion = json!({ "values": values, "total": total, "hasMore": total > VALUES_MAX });
                Ok(Answer::object(&json!({ "completion": completion })))
            })
        };
        Function::new(name, Arc::new(handler))
    }
}
