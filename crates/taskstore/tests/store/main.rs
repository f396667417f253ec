//! What the task-store promises, on both engines: each test runs on SQLite and on a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test that finds something else than it expects shall panic")]

mod again;
mod audit;
mod budgets;
mod concurrency;
mod control;
mod inputs;
mod leases;
mod logs;
mod migrations;
mod model;
mod sessions;
mod sweeps;
mod verbs;
mod world;

/// Each behaviour becomes two tests.
macro_rules! on_both_engines {
    ($($(#[doc = $doc:literal])* async fn $name:ident($world:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[doc = $doc])*
            async fn behaviour($world: World) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                behaviour(World::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                behaviour(World::postgres().await).await;
            }
        }
    )*};
}
pub(crate) use on_both_engines;
