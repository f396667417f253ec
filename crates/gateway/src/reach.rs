//! Whether the task-store can be reached: a short blip is no news.

use tokio::sync::watch;
use tokio::time::{Duration, Instant};

/// When the task-store was heard last, and whether that is too long ago.
#[derive(Debug)]
pub(crate) struct Reach {
    heard: watch::Sender<Instant>,
    is_away: watch::Sender<bool>,
}

impl Reach {
    /// From now on.
    pub(crate) fn new() -> Self {
        Self { heard: watch::Sender::new(Instant::now()), is_away: watch::Sender::new(false) }
    }

    /// It has answered.
    pub(crate) fn heard(&self) {
        self.heard.send_replace(Instant::now());
    }

    /// Whether it has not answered for too long.
    pub(crate) fn is_away(&self) -> bool {
        *self.is_away.borrow()
    }

    /// Says once that it is away, after `patience`, and once that it is back; for ever.
    pub(crate) async fn watch(&self, patience: Duration) {
        let mut heard = self.heard.subscribe();
        loop {
            let due = *heard.borrow_and_update() + patience;
            tokio::select! {
                changed = heard.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if self.is_away.send_if_modified(std::mem::take) {
                        tracing::info!("the task-store answers again: ready");
                    }
                }
                () = tokio::time::sleep_until(due), if !self.is_away() => {
                    self.is_away.send_replace(true);
                    tracing::warn!(patience_s = patience.as_secs(), "the task-store does not answer: not ready until it does");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_blip_is_no_news_and_a_long_one_ends_with_the_first_answer() {
        let reach = Reach::new();
        let patience = Duration::from_secs(15);
        let looks = async {
            let mut news = reach.is_away.subscribe();
            for _ in 0..4 {
                tokio::time::sleep(patience - Duration::from_secs(1)).await;
                assert!(!news.has_changed().unwrap() && !reach.is_away());
                reach.heard();
            }
            let begun = Instant::now();
            news.changed().await.unwrap();
            assert!(reach.is_away() && begun.elapsed() >= patience);
            tokio::time::sleep(10 * patience).await;
            assert!(!news.has_changed().unwrap(), "it is said once");
            reach.heard();
            news.changed().await.unwrap();
            assert!(!reach.is_away());
        };
        tokio::select! {
            () = looks => {}
            () = reach.watch(patience) => panic!("it watches for ever"),
        }
    }
}
