//! A tool that is run as a part of another tool's run.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use longhaul_core::Outcome;

use crate::answer::{internal_error, outcome};
use crate::ask::Ask;
use crate::context::Context;
use crate::tool::Tool;

/// Which part of a run.
#[derive(Clone)]
pub(crate) struct Part {
    /// The tool that is run.
    pub(crate) tool: Arc<str>,
    /// Before the keys of its questions.
    key: Arc<str>,
}

impl Tool {
    /// Runs the tool as a part of `context`'s run: what it asks is asked of that run's caller, under keys that begin with
    /// `key`, which is used once in a run; its status messages begin with its name. It has no progress, journal and
    /// `on_cancel` of its own. Its time limit holds, without the time that the run waits for answers. `bytes_max` is the
    /// largest answer, in bytes.
    pub async fn run_within(&self, context: &Context, key: &str, arguments: Bytes, bytes_max: usize) -> Outcome {
        let function = self.function();
        let part = Part { tool: function.name.as_str().into(), key: key.into() };
        let within = Context(context.0.clone(), Some(part));
        let running = AssertUnwindSafe(function.run(within, arguments)).catch_unwind();
        let end = context.worked() + function.timeout.unwrap_or_default();
        let run_out = async {
            match function.timeout {
                Some(_) => context.until_worked(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = running => match answer {
                Ok(answer) => outcome(answer, bytes_max),
                Err(_) => {
                    tracing::error!(name = function.name, "the tool panicked");
                    internal_error("the tool panicked")
                }
            },
            () = run_out => {
                let seconds = function.timeout.unwrap_or_default().as_secs_f64();
                internal_error(format!("timed out after {seconds} s"))
            }
        }
    }
}

impl Context {
    /// A question as the run knows it: those of a part begin with its key.
    pub(crate) fn of_part(&self, ask: Ask) -> Ask {
        match (&self.1, &ask.key) {
            (Some(part), Some(key)) => {
                let key = format!("{}.{key}", part.key);
                ask.key(key)
            }
            _ => ask,
        }
    }
}
