//! From a signal to the end of a process.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Fires on SIGTERM or SIGINT. A second one ends the process at once, with exit code 1.
pub fn on_signal() -> anyhow::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let fired = token.clone();
    // Outlives every role on purpose: it must hear the second signal while they drain.
    #[expect(clippy::disallowed_methods, reason = "nothing waits for this task: the process's end is its end")]
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("draining");
        fired.cancel();
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::warn!("ending at once");
        std::process::exit(1);
    });
    Ok(token)
}

/// Time for balancers to see that `/readyz` fails.
pub(crate) async fn notice(notice: Duration) {
    tokio::time::sleep(notice).await;
}

/// Runs to the end, but no longer than `deadline` after `drain` has fired.
pub(crate) async fn within(
    deadline: Duration,
    drain: CancellationToken,
    running: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let late = async {
        drain.cancelled().await;
        tokio::time::sleep(deadline).await;
    };
    tokio::select! {
        ran = running => ran,
        () = late => Err(anyhow::anyhow!("the drain was not over after {deadline:?}")),
    }
}
