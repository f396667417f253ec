//! The whole system, one module a verb.
#![expect(clippy::unwrap_used, reason = "a test")]

/// Makes a test of each function for each wiring.
macro_rules! both {
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(longhaul_tests::world::Wiring::Embedded).await;
            })+
        }
        mod cluster {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(longhaul_tests::world::Wiring::Cluster).await;
            })+
        }
    };
}
pub(crate) use both;

mod budgets;
mod bytes;
mod call;
mod cancel;
mod chain;
mod checks;
mod control;
mod create;
mod eras;
mod expiry;
mod get;
mod hints;
mod house;
mod input;
mod limits;
mod list;
mod listen;
mod mrtr;
mod offers;
mod replicas;
mod result;
mod rmcp;
mod services;
mod session;
mod settings;
mod streams;
mod telemetry;
mod tenancy;
mod tools;
mod upstream;
mod worker;
