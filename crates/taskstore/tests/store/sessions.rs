//! What is remembered of sessions.

use std::time::Duration;

use futures::future::join_all;
use longhaul_bus::{Control as ControlHint, Hint};
use longhaul_core::LogLevel;
use longhaul_rpc::{Control as _, Error, SESSION_NOTES_MAX, SUBSCRIPTIONS_MAX, SessionPosition, Tasks as _};
use longhaul_taskstore::TaskStore;

use crate::on_both_engines;
use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);

/// What is known of sessions that have changed after this, in the order of changes.
async fn known(store: &TaskStore, after: &SessionPosition) -> Vec<(String, bool, Option<LogLevel>)> {
    let notes = store.sessions(after).await.unwrap().into_iter();
    notes.map(|note| (note.session, note.ended, note.log_level)).collect()
}

fn note(session: &str, ended: bool, log_level: Option<LogLevel>) -> (String, bool, Option<LogLevel>) {
    (session.to_owned(), ended, log_level)
}

on_both_engines! {
    async fn what_is_known_of_a_session_is_remembered_until_it_would_have_expired(world) {
        let store = world.store().await;
        let now = store.create(new_task(&ann())).await.unwrap().created_at;
        let mut heard = world.bus.subscribe();
        for _ in 0..2 {
            assert!(store.end_session(&ann(), "s1", now.plus(MINUTE)).await.unwrap());
        }
        assert_eq!(heard.try_recv(), Ok(Hint::Control(ControlHint::Sessions)));
        for level in [LogLevel::Debug, LogLevel::Error] {
            assert!(store.set_log_level(&ann(), "s2", level, now.plus(10 * MINUTE)).await.unwrap());
        }
        // An end stays, and so does what was said before it.
        assert!(store.set_log_level(&ann(), "s3", LogLevel::Info, now.plus(10 * MINUTE)).await.unwrap());
        assert!(store.end_session(&ann(), "s3", now.plus(10 * MINUTE)).await.unwrap());
        assert!(store.end_session(&ann(), "s4", now.plus(10 * MINUTE)).await.unwrap());
        assert!(store.set_log_level(&ann(), "s4", LogLevel::Info, now.plus(MINUTE)).await.unwrap());
        let hints = std::iter::from_fn(|| heard.try_recv().ok()).filter(|hint| *hint == Hint::Control(ControlHint::Sessions));
        assert_eq!(hints.count(), 7);

        let (two, three) = (note("s2", false, Some(LogLevel::Error)), note("s3", true, Some(LogLevel::Info)));
        let four = note("s4", true, Some(LogLevel::Info));
        let all = [note("s1", true, None), two.clone(), three.clone(), four.clone()];
        let first = SessionPosition::first();
        assert_eq!(known(&world.store().await, &first).await, all);
        // A change brings a session to the end: who has read on reads it again, and nothing else.
        let end = SessionPosition::from(store.sessions(&first).await.unwrap().last().unwrap());
        assert_eq!(known(&store, &end).await, []);
        store.advance_clock(MINUTE / 2).await.unwrap();
        let two = note("s2", true, two.2);
        assert!(store.end_session(&ann(), "s2", now.plus(10 * MINUTE)).await.unwrap());
        assert_eq!(known(&store, &end).await, std::slice::from_ref(&two));
        assert_eq!(known(&store, &SessionPosition::since(end.changed_at)).await, [four.clone(), two.clone()]);
        store.advance_clock(MINUTE).await.unwrap();
        assert_eq!(known(&store, &first).await, [three, four, two]);
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT session FROM session_notes ORDER BY session").await, ["s2", "s3", "s4"]);
    }

    async fn so_many_sessions_of_one_caller_are_remembered_and_no_more(world) {
        let store = world.store().await;
        let now = store.create(new_task(&ann())).await.unwrap().created_at;
        let later = now.plus(MINUTE);
        assert!(store.end_session(&ann(), "0", later).await.unwrap());
        world
            .execute_any(format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
                 INSERT INTO session_notes (session, ended, expires_at, tenant, owner, changed_at)
                 SELECT 'n' || i, ended, expires_at, tenant, owner, changed_at FROM n, session_notes WHERE session = '0'",
                SESSION_NOTES_MAX - 2
            ))
            .await;
        assert!(store.set_log_level(&ann(), "last", LogLevel::Info, later).await.unwrap());
        let mut heard = world.bus.subscribe();
        assert!(!store.end_session(&ann(), "more", later).await.unwrap());
        assert!(!store.set_log_level(&ann(), "more", LogLevel::Info, later).await.unwrap());
        assert!(heard.try_recv().is_err(), "nothing has changed");
        // What is known already may change, and another caller's room is its own.
        assert!(store.end_session(&ann(), "last", later).await.unwrap());
        assert!(store.end_session(&agent("acme", "bob"), "more", later).await.unwrap());
        // Those that expire make room.
        store.advance_clock(2 * MINUTE).await.unwrap();
        while !world.texts("SELECT session FROM session_notes").await.is_empty() {
            store.purge().await.unwrap();
        }
        assert!(store.end_session(&ann(), "more", now.plus(10 * MINUTE)).await.unwrap());
    }

    async fn a_session_subscribes_to_so_many_resources_and_no_more(world) {
        let store = world.store().await;
        let now = store.create(new_task(&ann())).await.unwrap().created_at;
        let later = now.plus(MINUTE);
        let mut heard = world.bus.subscribe();
        assert!(store.subscribe("s", "demo://é", true, later).await.unwrap());
        assert_eq!(heard.try_recv(), Ok(Hint::Control(ControlHint::Subscriptions { session: "s".into() })));
        for at in 1..SUBSCRIPTIONS_MAX {
            assert!(store.subscribe("s", &format!("demo://{at}"), true, later).await.unwrap());
        }
        while heard.try_recv().is_ok() {}
        assert!(!store.subscribe("s", "demo://more", true, later).await.unwrap());
        assert!(heard.try_recv().is_err(), "nothing has changed");
        // What is there already is taken, and another session's room is its own.
        assert!(store.subscribe("s", "demo://é", true, later).await.unwrap());
        assert!(store.subscribe("t", "demo://more", true, later).await.unwrap());
        for _ in 0..2 {
            assert!(store.subscribe("s", "demo://5", false, later).await.unwrap());
        }
        assert!(store.subscribe("s", "demo://more", true, later).await.unwrap());
        let uris = world.store().await.subscriptions("s").await.unwrap();
        assert_eq!(uris.len(), SUBSCRIPTIONS_MAX);
        assert!(uris.contains(&"demo://é".into()) && uris.contains(&"demo://more".into()) && !uris.contains(&"demo://5".into()));
        assert_eq!(store.subscriptions("nobody").await.unwrap(), [""; 0]);
        assert!(matches!(store.subscribe("s", &"x".repeat(8193), true, later).await, Err(Error::Fault(_))));
        assert!(matches!(store.subscribe("s", "\0", true, later).await, Err(Error::Fault(_))));

        store.advance_clock(2 * MINUTE).await.unwrap();
        assert_eq!(store.subscriptions("s").await.unwrap(), [""; 0]);
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT uri FROM subscriptions").await, [""; 0]);
    }

    async fn the_maximum_is_exact_under_parallel_subscriptions_on_two_replicas(world) {
        let stores = [world.store().await, world.store().await];
        let later = stores[0].create(new_task(&ann())).await.unwrap().created_at.plus(MINUTE);
        for at in 0..SUBSCRIPTIONS_MAX - 3 {
            assert!(stores[0].subscribe("s", &at.to_string(), true, later).await.unwrap());
        }
        let more = (0..8).map(|at| {
            let store = stores[at % 2].clone();
            spawn(async move { store.subscribe("s", &format!("more {at}"), true, later).await.unwrap() })
        });
        let taken = join_all(more).await.into_iter().filter(|taken| *taken.as_ref().unwrap()).count();
        assert_eq!(taken, 3);
        assert_eq!(stores[1].subscriptions("s").await.unwrap().len(), SUBSCRIPTIONS_MAX);
    }
}
