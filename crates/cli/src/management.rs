//! The management listener of every role: `/livez`, `/readyz`, `/metrics`.

use std::sync::{Arc, Mutex, PoisonError};

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::BoxFuture;
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a check may take.
const CHECK_MAX: Duration = Duration::from_secs(1);

type Answer = BoxFuture<'static, Result<(), String>>;
type Check = Arc<dyn Fn() -> Answer + Send + Sync>;

/// Whether the process can serve: every named check holds, and it is not draining.
#[derive(Clone, Default)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<(&'static str, Check)>>>,
    draining: CancellationToken,
}

impl Readiness {
    /// Adds a check: `Err` says what is wrong and what to do.
    pub fn check(&self, name: &'static str, check: impl Fn() -> Answer + Send + Sync + 'static) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    /// From now on not ready.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// One line for each check, and whether all hold.
    pub async fn report(&self) -> (bool, String) {
        let mut ready = !self.draining.is_cancelled();
        let mut lines = if ready { String::new() } else { "[-] draining\n".to_owned() };
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, check) in checks {
            let answer = tokio::time::timeout(CHECK_MAX, check()).await;
            match answer.unwrap_or_else(|_| Err("no answer in time".into())) {
                Ok(()) => lines += &format!("[+] {name}\n"),
                Err(why) => {
                    ready = false;
                    lines += &format!("[-] {name}: {why}\n");
                }
            }
        }
        (ready, lines)
    }
}

/// Serves until `stop`. Alive means that the runtime answers; it never depends on another service.
pub async fn serve(listener: TcpListener, readiness: Readiness, registry: Registry, stop: CancellationToken) {
    let app = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(move || async move { metrics(&registry) }))
        .with_state(readiness);
    if let Err(error) = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::error!(%error, "the management listener failed");
    }
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    let (ready, lines) = readiness.report().await;
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, lines)
}

fn metrics(registry: &Registry) -> impl IntoResponse + use<> {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
