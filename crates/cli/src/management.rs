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
type News = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Whether the process can serve: it has started, every named check holds, and it is not draining.
#[derive(Clone, Default)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<(&'static str, Check)>>>,
    news: Arc<Mutex<Vec<News>>>,
    started: CancellationToken,
    draining: CancellationToken,
}

impl Readiness {
    /// Adds a check: `Err` says what is wrong and what to do.
    pub fn check(&self, name: &'static str, check: impl Fn() -> Answer + Send + Sync + 'static) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    /// Adds lines that hinder nothing: each says what is missing.
    pub fn mention(&self, news: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(news));
    }

    /// The role is there, with all its checks: not ready before.
    pub fn started(&self) {
        self.started.cancel();
    }

    /// From now on not ready.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// One line for each check, and whether all hold.
    pub async fn report(&self) -> (bool, String) {
        let (mut ready, mut lines) = (true, String::new());
        for (holds, why) in [(self.started.is_cancelled(), "starting"), (!self.draining.is_cancelled(), "draining")] {
            if !holds {
                ready = false;
                lines += &format!("[-] {why}\n");
            }
        }
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
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for line in news.iter().flat_map(|news| news()) {
            // Another server's words may be in it.
            lines += &format!("[ ] {}\n", line.replace(char::is_control, " "));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_only_mentioned_hinders_nothing_and_keeps_to_its_line() {
        let readiness = Readiness::default();
        readiness.check("a", || Box::pin(async { Ok(()) }));
        readiness.mention(|| vec!["upstream files: refuses:\n[-] a".to_owned()]);
        let mentioned = "[+] a\n[ ] upstream files: refuses: [-] a\n";
        assert_eq!(readiness.report().await, (false, format!("[-] starting\n{mentioned}")));
        readiness.started();
        assert_eq!(readiness.report().await, (true, mentioned.to_owned()));
        readiness.check("b", || Box::pin(async { Err("is away".into()) }));
        assert!(!readiness.report().await.0);
        readiness.drain();
        assert!(readiness.report().await.1.starts_with("[-] draining\n"));
    }
}
