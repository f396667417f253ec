//! Tasks that are handed out again, and their journals.

use std::time::Duration;

use bytes::Bytes;
use longhaul_core::limits::{JOURNAL_BYTES_MAX, JOURNAL_ENTRIES_MAX};
use longhaul_core::{Ending, Interruption, OnInterrupt, Outcome, Phase, Refusal, Retry};
use longhaul_rpc::{Error, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::verbs::refusal;
use crate::world::*;

fn again(on_interrupt: OnInterrupt, max_attempts: u32) -> longhaul_core::NewTask {
    longhaul_core::NewTask { retry: Retry { on_interrupt, max_attempts }, ..new_task(&ann()) }
}

on_both_engines! {
    async fn a_task_whose_worker_is_lost_is_handed_out_again_until_it_was_often_enough(world) {
        let store = world.store().await;
        let new = again(OnInterrupt::Requeue, 2);
        assert_eq!(store.create(new.clone()).await.unwrap().retry, new.retry);
        let first = claim(&store, "t1").await.task;
        assert_eq!((first.attempt, first.retry), (1, new.retry));
        store.advance_clock(LEASE + Duration::from_secs(1)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 1);
        let queued = store.get(&ann(), new.id).await.unwrap();
        assert_eq!((&queued.phase, queued.version), (&Phase::Queued, first.version + 1));
        assert!(queued.status_message.unwrap().contains("stopped responding"));
        // Its former worker has lost it.
        assert_eq!(refusal(store.complete(fence(&first), done("{}")).await), Refusal::Fenced);

        let second = claim(&store, "t2").await.task;
        assert_eq!((second.id, second.attempt), (new.id, 2));
        assert_eq!(refusal(store.complete(fence(&first), done("{}")).await), Refusal::Fenced);
        store.advance_clock(LEASE + Duration::from_secs(1)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 1);
        let ended = store.get(&ann(), new.id).await.unwrap();
        assert_eq!(ended.ending(), Some(Ending::Interrupted(Interruption::WorkerLost)));
        assert_eq!(world.texts("SELECT event FROM audit ORDER BY id").await, ["mcp.task.created", "mcp.task.failed"]);
        assert_eq!(store.count().await.unwrap().open, 0);
    }

    async fn a_worker_that_ends_hands_its_tasks_back(world) {
        let store = world.store().await;
        let new = again(OnInterrupt::Resume, 3);
        store.create(new.clone()).await.unwrap();
        let first = claim(&store, "t1").await.task;
        let back = store.complete(fence(&first), Outcome::Interrupted(Interruption::Drained)).await.unwrap();
        assert_eq!(back.phase, Phase::Queued);
        assert_eq!(claim(&store, "t2").await.task.attempt, 2);
    }

    async fn a_worker_that_comes_back_gets_its_task_again(world) {
        let store = world.store().await;
        store.create(again(OnInterrupt::Resume, 3)).await.unwrap();
        claim(&store, "t1").await;
        let reborn = longhaul_core::WorkerId { name: "w".into(), incarnation: "2".into() };
        let _directives = store.attach(worker_info(&reborn, &["echo"])).await.unwrap();
        let wish = longhaul_rpc::Claim {
            worker: reborn,
            token: longhaul_core::LeaseToken("t2".into()),
            tools: vec!["echo".into()],
            max: 1,
            wait: Duration::ZERO,
        };
        assert_eq!(store.claim(wish).await.unwrap()[0].task.attempt, 2);
    }

    async fn a_waiting_claim_hears_of_a_task_that_is_handed_out_again(world) {
        let (store, other) = (world.store().await, world.store().await);
        store.create(again(OnInterrupt::Requeue, 3)).await.unwrap();
        let first = claim(&store, "t1").await.task;
        let waiting = async move {
            let wish = longhaul_rpc::Claim {
                worker: worker("other"),
                token: longhaul_core::LeaseToken("t2".into()),
                tools: vec!["echo".into()],
                max: 1,
                wait: Duration::from_secs(9),
            };
            let start = std::time::Instant::now();
            (other.claim(wish).await.unwrap().pop().unwrap(), start.elapsed())
        };
        let handing_back = store.complete(fence(&first), Outcome::Interrupted(Interruption::Drained));
        let ((second, waited), back) = tokio::join!(waiting, handing_back);
        back.unwrap();
        assert_eq!((second.task.id, second.task.attempt), (first.id, 2));
        assert!(waited < Duration::from_secs(8), "{waited:?}: the hint was not heard");
    }

    async fn a_journal_is_kept_for_the_next_attempt_and_no_longer(world) {
        let store = world.store().await;
        let new = again(OnInterrupt::Resume, 3);
        store.create(new.clone()).await.unwrap();
        let first = claim(&store, "t1").await.task;
        let entries = [Bytes::from_static(b"\0c4n4ry\xff"), Bytes::new(), Bytes::from(vec![7; 200_000]), "{}".into()];
        for (nth, entry) in (1..).zip(&entries) {
            store.record(fence(&first), nth, entry.clone()).await.unwrap();
            // Again, it changes nothing.
            store.record(fence(&first), nth, entry.clone()).await.unwrap();
        }
        assert!(matches!(store.record(fence(&first), 9, Bytes::new()).await, Err(Error::Fault(_))), "a gap");
        assert_eq!(refusal(store.record(fence(&first), 0, Bytes::new()).await), Refusal::JournalFull);
        assert_eq!(refusal(store.record(fence(&first), JOURNAL_ENTRIES_MAX + 1, Bytes::new()).await), Refusal::JournalFull);
        store.complete(fence(&first), Outcome::Interrupted(Interruption::Drained)).await.unwrap();
        assert_eq!(refusal(store.record(fence(&first), 5, Bytes::new()).await), Refusal::Fenced);
        assert_eq!(refusal(store.journal(fence(&first), 0).await), Refusal::Fenced);

        let second = claim(&store, "t2").await.task;
        let mut read: Vec<Bytes> = Vec::new();
        loop {
            let page = store.journal(fence(&second), read.len() as u32).await.unwrap();
            assert!(page.len() < entries.len(), "a page is not too large");
            if page.is_empty() {
                break;
            }
            read.extend(page);
        }
        assert_eq!(read, entries);
        store.record(fence(&second), 5, "more".into()).await.unwrap();
        let places = "SELECT CAST(nth AS text) FROM journal ORDER BY nth";
        assert_eq!(world.texts(places).await, ["1", "2", "3", "4", "5"]);
        let dump = world.dump().await;
        for canary in [&b"c4n4ry"[..], b"63346e347279"] {
            assert!(!dump.windows(canary.len()).any(|window| window == canary), "it is sealed");
        }
        store.complete(fence(&second), done("{}")).await.unwrap();
        assert!(world.texts(places).await.is_empty());
    }

    async fn a_journal_has_a_maximum(world) {
        let store = world.store().await;
        store.create(again(OnInterrupt::Resume, 3)).await.unwrap();
        let held = claim(&store, "t1").await.task;
        let entry = Bytes::from(vec![1; JOURNAL_BYTES_MAX / 16]);
        for nth in 1..=15 {
            store.record(fence(&held), nth, entry.clone()).await.unwrap();
        }
        // Sealed they are a little larger.
        assert_eq!(refusal(store.record(fence(&held), 16, entry).await), Refusal::JournalFull);
        store.record(fence(&held), 16, "small".into()).await.unwrap();
    }
}
