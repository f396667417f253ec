//! A task whose creator has not heard of it yet. In MCP 2026-07-28 nobody else ever can: there is no list of tasks.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use longhaul_core::{Principal, TaskId};
use tokio::runtime::Handle;

use crate::Shared;

/// Cancels its task when it is dropped before the creator was told.
pub(crate) struct Unheard(Option<Pending>);

struct Pending {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    task: TaskId,
    /// It may be dropped where there is no runtime.
    runtime: Handle,
}

impl Unheard {
    pub(crate) fn new(shared: &Arc<Shared>, principal: &Arc<Principal>, task: TaskId) -> Self {
        let (shared, principal) = (shared.clone(), principal.clone());
        Self(Some(Pending { shared, principal, task, runtime: Handle::current() }))
    }

    /// Its creator was told, or is not in need of it.
    pub(crate) fn heard(mut self) {
        self.0 = None;
    }

    /// Its creator is told by this body: once that was taken, nobody can say any more what was heard.
    pub(crate) fn heard_with(self, body: Body) -> Body {
        Body::new(Told { body, task: Some(self) })
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let Some(Pending { shared, principal, task, runtime }) = self.0.take() else { return };
        let tracker = shared.tracker.clone();
        let cancelling = async move {
            tracing::debug!(task.id = %task, "the client was gone before it heard of its task");
            if let Err(error) = shared.tasks.cancel(&principal, task).await {
                tracing::debug!(task.id = %task, %error, "a task that nobody knows could not be cancelled");
            }
        };
        tracker.spawn_on(cancelling, &runtime);
    }
}

struct Told {
    body: Body,
    task: Option<Unheard>,
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready()
            && let Some(task) = self.task.take()
        {
            task.heard();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
