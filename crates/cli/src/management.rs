//! The management listener of every role: `/livez`, `/readyz`, `/metrics`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::future::BoxFuture;
use longhaul_rpc::Health;
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a check may take.
const CHECK_MAX: Duration = Duration::from_secs(1);

/// How often gRPC health checks are told what `/readyz` says.
const TELL_EVERY: Duration = Duration::from_secs(1);

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

    /// Tells gRPC health checks the same as `/readyz`, for ever.
    pub async fn tell(&self, health: Health) -> Infallible {
        loop {
            health.set(self.report().await.0).await;
            // That it drains is told at once, and is the last news.
            match self.draining.is_cancelled() {
                true => std::future::pending().await,
                false => drop(self.draining.run_until_cancelled(tokio::time::sleep(TELL_EVERY)).await),
            }
        }
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use longhaul_rpc::client::{Target, is_serving};
    use longhaul_rpc::{Links, Server, ServiceToken};

    use super::*;

    #[tokio::test]
    async fn grpc_health_checks_hear_what_readyz_says() {
        let (links, token) = (Links::default(), ServiceToken::new(["a-service-token-of-tests"]).unwrap());
        let listener = links.listen("x");
        let server = Server::new(token.clone(), 0, CancellationToken::new());
        let (health, readiness) = (server.health(), Readiness::default());
        let holds = Arc::new(AtomicBool::new(true));
        let check = holds.clone();
        readiness.check("a", move || {
            let holds = check.load(Ordering::SeqCst);
            Box::pin(async move { holds.then_some(()).ok_or_else(|| "is away".into()) })
        });
        let target = Target { links, urls: vec!["memory://x".into()], token, payload_bytes_max: 0 };
        let becomes = async |serving| {
            while is_serving(&target).await.unwrap() != serving {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let looks = async {
            becomes(false).await;
            readiness.started();
            becomes(true).await;
            holds.store(false, Ordering::SeqCst);
            becomes(false).await;
            holds.store(true, Ordering::SeqCst);
            becomes(true).await;
            readiness.drain();
            becomes(false).await;
        };
        tokio::select! {
            looked = tokio::time::timeout(20 * TELL_EVERY, looks) => looked.unwrap(),
            served = server.serve(listener) => panic!("{served:?}"),
            never = readiness.tell(health) => match never {},
        }
    }

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
