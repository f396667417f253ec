//! Create, get, result, list, cancel, report, complete, changed, tools.

use std::time::Duration;

use bytes::Bytes;
use longhaul_bus::{Control as ControlHint, Hint};
use longhaul_core::{
    CallError, Ending, Event, Interruption, LimitScope, Outcome, Phase, Progress, Refusal, TraceContext, TtlWish,
};
use longhaul_rpc::{Error, Position, Report, TaskCount, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::world::*;

pub fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?} is no refusal"),
    }
}

on_both_engines! {
    async fn a_task_goes_from_queued_to_its_result(world) {
        let store = world.store().await;
        let mut heard = world.bus.subscribe();
        let new = longhaul_core::NewTask {
            progress_token: Some(Bytes::from_static(b"\"p\"")),
            session: Some("s".into()),
            trace: TraceContext::new(
                Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                Some("a=b"),
                Some("k=v"),
            ),
            ..new_task(&ann())
        };
        let created = store.create(new.clone()).await.unwrap();
        assert_eq!(created, store.get(&ann(), new.id).await.unwrap());
        assert_eq!((created.version, &created.phase, created.ttl_ms), (1, &Phase::Queued, Some(3_600_000)));
        assert_eq!((&created.progress_token, &created.session), (&new.progress_token, &new.session));
        assert_eq!(store.result(&ann(), new.id).await.unwrap(), (created.clone(), None));

        let assignment = claim(&store, "t").await;
        assert_eq!(assignment.arguments, new.arguments);
        assert_eq!(assignment.trace, new.trace);
        assert!(assignment.trace.tracestate.is_some() && assignment.trace.baggage.is_some());
        let Phase::Running(lease) = assignment.task.phase.clone() else { panic!("it runs") };
        // The statement does what the verb says.
        let verb = created.clone().claim(lease.clone()).unwrap().task;
        assert_eq!(assignment.task, longhaul_core::Task { updated_at: assignment.task.updated_at, ..verb });
        assert_eq!(lease.until, assignment.task.updated_at.plus(LEASE));
        assert!(assignment.task.updated_at >= created.updated_at);

        let report = Report {
            status_message: Some("half".into()),
            progress: Some(Progress { progress: 0.5, total: Some(1.0), message: Some("m\0".into()) }),
        };
        let reported = store.report(fence(&assignment.task), report.clone()).await.unwrap();
        assert_eq!((reported.version, &reported.progress), (3, &report.progress));
        assert_eq!(reported.status_message.as_deref(), Some("half"));
        assert_eq!(reported, store.get(&ann(), new.id).await.unwrap());

        let ended = store.complete(fence(&assignment.task), done("{\"ok\":1}")).await.unwrap();
        assert_eq!(ended.phase, Phase::Ended(Ending::Result { is_error: false }));
        assert_eq!(store.result(&ann(), new.id).await.unwrap(), (ended, Some(done("{\"ok\":1}"))));

        let versions: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert_eq!(versions, [1, 3, 4].map(|version| Hint::Task { id: new.id, version }));
        assert_eq!(store.count().await.unwrap(), TaskCount { stored: 1, open: 0 });
    }

    async fn a_task_of_somebody_else_is_not_there(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let others = [agent("acme", "bob"), agent("umbrella", "ann")];
        for other in &others {
            assert_eq!(refusal(store.get(other, task.id).await), Refusal::NotFound);
            assert_eq!(refusal(store.result(other, task.id).await), Refusal::NotFound);
            assert_eq!(refusal(store.cancel(other, task.id).await), Refusal::NotFound);
            assert_eq!(store.list(other, None, 50).await.unwrap().tasks, []);
        }
        assert_eq!(refusal(store.get(&ann(), id()).await), Refusal::NotFound);
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), task);
    }

    async fn payloads_come_back_byte_for_byte(world) {
        let store = world.store_with(|config| config.max_open = 0).await;
        let corpus: Vec<Bytes> = [
            r#"{"zz":1,"a":1e2,"b":-0,"c":123456789012345678901234567890,"a":2}"#,
            r#"{"nul":"x\u0000y","ls":"\u2028","pair":"\ud83d\ude00","raw":"é😀"}"#,
            "{ \"spaces\" :\t[ 1 , 2 ] }",
        ]
        .map(Bytes::from_static_str)
        .into_iter()
        .chain([Bytes::from_static(b"{\"raw nul\":\"\0\"}"), Bytes::from(vec![b' '; 1024 * 1024])])
        .collect();
        for payload in corpus {
            let new = longhaul_core::NewTask { arguments: payload.clone(), ..new_task(&ann()) };
            store.create(new.clone()).await.unwrap();
            let assignment = claim(&store, &new.id.to_string()).await;
            assert_eq!(assignment.arguments, payload);
            let outcomes = [
                Outcome::Result { is_error: true, body: payload.clone() },
                Outcome::Error(CallError { code: -7, message: "no\0!".into(), data: Some(payload.clone()) }),
            ];
            let outcome = outcomes[payload.len() % 2].clone();
            store.complete(fence(&assignment.task), outcome.clone()).await.unwrap();
            assert_eq!(store.result(&ann(), new.id).await.unwrap().1, Some(outcome));
        }
    }

    async fn every_ending_is_read_as_it_was_written(world) {
        let store = world.store().await;
        let outcomes = [
            done("{}"),
            Outcome::Result { is_error: true, body: Bytes::from_static(b"{\"isError\":true}") },
            Outcome::Error(CallError { code: -32000, message: "no".into(), data: None }),
            Outcome::Interrupted(Interruption::Drained),
        ];
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let task = store.create(new_task(&ann())).await.unwrap();
            let held = claim(&store, &number.to_string()).await.task;
            let ended = store.complete(fence(&held), outcome.clone()).await.unwrap();
            assert_eq!(ended.ending(), Some(outcome.ending()));
            assert_eq!(store.result(&ann(), task.id).await.unwrap(), (ended, Some(outcome)));
        }
    }

    async fn results_of_all_sizes_come_back_whole_however_many_are_read_at_once(world) {
        let store = world.store().await;
        let mut expected = Vec::new();
        // Those of more than 64 KiB are not read along with others.
        for size in [0, 10, 65_534, 65_535, 65_536, 65_537, 300_000, 3_000_000] {
            let new = new_task(&ann());
            let task = store.create(new.clone()).await.unwrap();
            assert_eq!(claim(&store, "t").await.task.id, task.id);
            let held = store.get(&ann(), task.id).await.unwrap();
            let body = Bytes::from(format!("\"{}\"", "x".repeat(size)));
            let outcome = Outcome::Result { body, is_error: false };
            store.complete(fence(&held), outcome.clone()).await.unwrap();
            expected.push((task.id, outcome));
        }
        let reads = (0..8).flat_map(|_| &expected).map(async |(id, outcome)| {
            let (task, read) = store.result(&ann(), *id).await.unwrap();
            assert!(read.as_ref() == Some(outcome), "{:?}", task.ending());
            // Nobody else's, however large.
            assert_eq!(refusal(store.result(&agent("acme", "bob"), *id).await), Refusal::NotFound);
        });
        futures::future::join_all(reads).await;
    }

    async fn a_result_that_is_too_large_ends_the_task_as_failed(world) {
        let store = world.store_with(|config| config.max_result_bytes = 10).await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let held = claim(&store, "t").await.task;
        let ended = store.complete(fence(&held), done("{\"a\":12345}")).await.unwrap();
        assert_eq!(ended.ending(), Some(Ending::Error));
        let Some(Outcome::Error(error)) = store.result(&ann(), task.id).await.unwrap().1 else { panic!("an error") };
        assert_eq!(error.code, -32603);
        assert_eq!(error.message, "result too large: 11 bytes, at most 10 (task_max_result_bytes)");
        // Repeated, it is the same completion.
        assert_eq!(store.complete(fence(&held), done("{\"a\":12345}")).await.unwrap(), ended);
    }

    async fn the_same_create_again_is_the_same_task(world) {
        let store = world.store().await;
        let new = new_task(&ann());
        let first = store.create(new.clone()).await.unwrap();
        assert_eq!(store.create(new.clone()).await.unwrap(), first);
        let held = claim(&store, "t").await.task;
        assert_eq!(store.create(new.clone()).await.unwrap(), held);
        for other in [
            longhaul_core::NewTask { owner: agent("acme", "bob"), ..new.clone() },
            longhaul_core::NewTask { tool: "other".into(), ..new.clone() },
        ] {
            assert!(matches!(store.create(other).await, Err(Error::Fault(_))));
        }
        assert_eq!(store.count().await.unwrap(), TaskCount { stored: 1, open: 1 });
        assert_eq!(world.texts("SELECT event FROM audit").await, ["mcp.task.created"]);
    }

    async fn a_cancelled_task_stays_cancelled(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let held = claim(&store, "t").await.task;
        let cancelled = store.cancel(&ann(), task.id).await.unwrap();
        assert_eq!(cancelled.phase, Phase::Ended(Ending::Cancelled));
        let over = Refusal::AlreadyEnded(Ending::Cancelled);
        assert_eq!(refusal(store.cancel(&ann(), task.id).await), over);
        assert_eq!(refusal(store.complete(fence(&held), done("{}")).await), over);
        assert_eq!(refusal(store.report(fence(&held), Report::default()).await), over);
        assert_eq!(store.result(&ann(), task.id).await.unwrap(), (cancelled, Some(Outcome::Cancelled)));
    }

    async fn the_database_itself_refuses_to_change_an_ended_task(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        store.cancel(&ann(), task.id).await.unwrap();
        for sql in ["UPDATE tasks SET status_message = NULL", "UPDATE tasks SET phase = 'queued', ending = NULL"] {
            let complaint = world.execute(sql).await.unwrap_err();
            assert!(complaint.contains("never changes"), "{complaint}");
        }
        assert_eq!(world.execute("DELETE FROM tasks").await, Ok(1));
    }

    async fn only_the_holder_of_the_lease_may_report_and_complete(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let nobody = longhaul_core::Fence { id: task.id, attempt: 0, token: longhaul_core::LeaseToken("t".into()) };
        assert_eq!(refusal(store.complete(nobody, done("{}")).await), Refusal::Fenced);
        let held = claim(&store, "t").await.task;
        let good = fence(&held);
        let earlier = longhaul_core::Fence { attempt: 0, ..good.clone() };
        let later = longhaul_core::Fence { attempt: 2, ..good.clone() };
        let other = longhaul_core::Fence { token: longhaul_core::LeaseToken("u".into()), ..good.clone() };
        for zombie in [earlier, later, other] {
            assert_eq!(refusal(store.complete(zombie.clone(), done("{}")).await), Refusal::Fenced);
            assert_eq!(refusal(store.report(zombie, Report::default()).await), Refusal::Fenced);
        }
        let unknown = longhaul_core::Fence { id: id(), ..good.clone() };
        assert_eq!(refusal(store.complete(unknown, done("{}")).await), Refusal::NotFound);
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), held);
    }

    async fn a_repeated_completion_is_no_error_but_another_one_is(world) {
        let store = world.store().await;
        store.create(new_task(&ann())).await.unwrap();
        let held = claim(&store, "t").await.task;
        let ended = store.complete(fence(&held), done("{\"a\":1}")).await.unwrap();
        assert_eq!(store.complete(fence(&held), done("{\"a\":1}")).await.unwrap(), ended);
        let over = Refusal::AlreadyEnded(Ending::Result { is_error: false });
        assert_eq!(refusal(store.complete(fence(&held), done("{\"a\":2}")).await), over);
        let zombie = longhaul_core::Fence { attempt: 2, ..fence(&held) };
        assert_eq!(refusal(store.complete(zombie, done("{\"a\":1}")).await), over);
        assert_eq!(world.texts("SELECT event FROM audit ORDER BY id").await, ["mcp.task.created", "mcp.task.completed"]);
    }

    async fn a_list_is_whole_and_newest_first_whatever_the_page(world) {
        let store = world.store_with(|config| config.max_open = 0).await;
        for _ in 0..23 {
            store.create(new_task(&ann())).await.unwrap();
        }
        store.create(new_task(&agent("acme", "bob"))).await.unwrap();
        // Ties in the time of creation.
        world.execute("UPDATE tasks SET created_at = created_at / 4000 * 4000").await.unwrap();
        let whole = store.list(&ann(), None, 50).await.unwrap();
        assert_eq!((whole.tasks.len(), whole.more), (23, false));
        let place = |task: &longhaul_core::Task| (task.created_at, task.id.to_string());
        assert!(whole.tasks.windows(2).all(|two| place(&two[0]) > place(&two[1])));
        for limit in [1, 2, 7, 22, 23] {
            let (mut tasks, mut after) = (Vec::new(), None);
            loop {
                let page = store.list(&ann(), after, limit).await.unwrap();
                assert!(page.tasks.len() <= limit as usize);
                after = page.tasks.last().map(|task| Position { created_at: task.created_at, id: task.id });
                tasks.extend(page.tasks);
                if !page.more {
                    break;
                }
            }
            assert_eq!(tasks, whole.tasks);
        }
    }

    async fn the_caps_are_told_apart_and_zero_is_none(world) {
        let store = world.store_with(|config| (config.max_open, config.max_live) = (2, 3)).await;
        let first = store.create(new_task(&ann())).await.unwrap();
        store.create(new_task(&ann())).await.unwrap();
        let of_caller = Refusal::TaskLimit { scope: LimitScope::Caller, limit: 2 };
        let of_tenant = Refusal::TaskLimit { scope: LimitScope::Tenant, limit: 3 };
        assert_eq!(refusal(store.create(new_task(&ann())).await), of_caller);
        store.create(new_task(&agent("acme", "bob"))).await.unwrap();
        assert_eq!(refusal(store.create(new_task(&agent("acme", "bob"))).await), of_tenant);
        store.create(new_task(&agent("umbrella", "ann"))).await.unwrap();
        // An ended task makes room.
        store.cancel(&ann(), first.id).await.unwrap();
        store.create(new_task(&ann())).await.unwrap();
        assert_eq!(refusal(store.create(new_task(&ann())).await), of_caller);
        assert_eq!(store.count().await.unwrap(), TaskCount { stored: 5, open: 4 });

        let free = world.store_with(|config| (config.max_open, config.max_live) = (0, 0)).await;
        for _ in 0..5 {
            free.create(new_task(&ann())).await.unwrap();
        }
    }

    async fn a_wish_for_a_time_to_live_is_granted_within_the_bounds(world) {
        let store = world.store_with(|config| config.ttl.max_ms = 0).await;
        for (wish, granted) in [
            (TtlWish::Ms(0), Some(3_600_000)),
            (TtlWish::Ms(7_200_000), Some(7_200_000)),
            (TtlWish::Longest, None),
            (TtlWish::Ms(u64::MAX), Some(i64::MAX as u64 / 4000)),
        ] {
            let task = store.create(longhaul_core::NewTask { ttl: wish, ..new_task(&ann()) }).await.unwrap();
            assert_eq!(task.ttl_ms, granted);
            assert_eq!(store.get(&ann(), task.id).await.unwrap(), task);
        }
    }

    async fn the_audit_log_has_one_line_for_each_transition_and_no_payload(world) {
        let store = world.store().await;
        let canary = || Bytes::from_static(b"{\"canary\":\"c4n4ry\"}");
        let new = |parent| {
            let trace = TraceContext::new(parent, Some("c=c4n4ry"), Some("c=c4n4ry"));
            longhaul_core::NewTask { arguments: canary(), trace, ..new_task(&ann()) }
        };
        let traced = new(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        store.create(traced.clone()).await.unwrap();
        let held = claim(&store, "t").await.task;
        store.report(fence(&held), Report { status_message: Some("c4n4ry".into()), progress: None }).await.unwrap();
        let error = CallError { code: 1, message: "c4n4ry".into(), data: Some(canary()) };
        store.complete(fence(&held), Outcome::Error(error)).await.unwrap();
        let other = store.create(new(None)).await.unwrap();
        store.cancel(&ann(), other.id).await.unwrap();
        let line = "SELECT event || ' ' || version || ' ' || task_id || ' ' || tenant || ' ' || owner || ' ' || tool || ' ' ||
            coalesce(reason, '-') || ' ' || coalesce(trace_id, '-') FROM audit ORDER BY id";
        let lines = world.texts(line).await;
        let (trace, owner) = ("4bf92f3577b34da6a3ce929d0e0e4736", ann().owner());
        assert_eq!(lines, [
            format!("{} 1 {} acme {owner} echo - {trace}", Event::Created.name(), traced.id),
            format!("{} 4 {} acme {owner} echo error {trace}", Event::Failed.name(), traced.id),
            format!("{} 1 {} acme {owner} echo - -", Event::Created.name(), other.id),
            format!("{} 2 {} acme {owner} echo cancelled -", Event::Cancelled.name(), other.id),
        ]);
        assert!(!lines.concat().contains("c4n4ry"));
    }

    async fn what_has_changed_is_told_by_version(world) {
        let store = world.store().await;
        let (one, two) = (store.create(new_task(&ann())).await.unwrap(), store.create(new_task(&ann())).await.unwrap());
        let gone = id();
        store.cancel(&ann(), two.id).await.unwrap();
        let mut changed = store.changed(vec![(one.id, 1), (two.id, 1), (gone, 7)]).await.unwrap();
        changed.sort();
        let mut expected = vec![(two.id, 2), (gone, u64::MAX)];
        expected.sort();
        assert_eq!(changed, expected);
        assert_eq!(store.changed(vec![(one.id, 1), (two.id, 2)]).await.unwrap(), []);
        store.advance_clock(Duration::from_secs(3601)).await.unwrap();
        assert_eq!(store.changed(vec![(two.id, 2)]).await.unwrap(), [(two.id, u64::MAX)]);
    }

    async fn the_tools_of_live_workers_are_listed_exactly(world) {
        let store = world.store().await;
        let mut heard = world.bus.subscribe();
        let (b, a) = (worker_info(&worker("b"), &["echo", "other"]), worker_info(&worker("a"), &[]));
        let _b = store.attach(b.clone()).await.unwrap();
        let _a = store.attach(a.clone()).await.unwrap();
        assert_eq!(heard.try_recv(), Ok(Hint::Control(ControlHint::Tools)));
        assert_eq!(store.tools().await.unwrap(), [a.clone(), b.clone()]);
        store.advance_clock(LEASE / 2).await.unwrap();
        store.heartbeat(&b.id, vec![]).await.unwrap();
        store.advance_clock(LEASE / 2).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), std::slice::from_ref(&b));
        store.detach(&longhaul_core::WorkerId { incarnation: "0".into(), ..b.id.clone() }).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), std::slice::from_ref(&b));
        // What a worker that has gone offers is known as long as if it had fallen silent; its last words change nothing.
        store.detach(&b.id).await.unwrap();
        let id = longhaul_core::WorkerId { incarnation: String::new(), ..b.id.clone() };
        let gone = longhaul_core::WorkerInfo { id, url: None, ..b.clone() };
        assert_eq!(store.tools().await.unwrap(), std::slice::from_ref(&gone));
        store.advance_clock(LEASE / 2).await.unwrap();
        store.heartbeat(&b.id, vec![]).await.unwrap();
        store.detach(&b.id).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), [gone]);
        store.advance_clock(LEASE / 2).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), []);
        // The next one of its name is there at once.
        let next = worker_info(&longhaul_core::WorkerId { incarnation: "2".into(), ..b.id }, &["echo"]);
        let _next = store.attach(next.clone()).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), [next]);
    }

    async fn after_an_outage_workers_get_the_grace_of_their_leases(world) {
        let store = world.store().await;
        let info = worker_info(&worker("w"), &["echo"]);
        let _attached = store.attach(info.clone()).await.unwrap();
        store.interrupt().await.unwrap();
        // Nobody looked, and nobody was heard, for ten thousand seconds.
        world.execute("UPDATE sweeps SET last_tick = last_tick - 10000000000").await.unwrap();
        world.execute("UPDATE workers SET last_seen = last_seen - 10000000000").await.unwrap();
        assert_eq!(store.tools().await.unwrap(), std::slice::from_ref(&info), "before the first sweep");
        store.interrupt().await.unwrap();
        assert_eq!(store.tools().await.unwrap(), std::slice::from_ref(&info), "after it");
        store.advance_clock(LEASE + Duration::from_secs(1)).await.unwrap();
        assert_eq!(store.tools().await.unwrap(), []);
    }

    async fn names_with_nul_are_refused_and_harm_nobody(world) {
        let store = world.store().await;
        let bad = [
            longhaul_core::NewTask { tool: "a\0".into(), ..new_task(&ann()) },
            longhaul_core::NewTask { session: Some("\0".into()), ..new_task(&ann()) },
            new_task(&agent("acme", "a\0")),
        ];
        for bad in bad {
            assert!(matches!(store.create(bad).await, Err(Error::Fault(_))));
        }
        assert!(matches!(store.list(&agent("acme", "a\0"), None, 1).await, Err(Error::Fault(_))));
        assert_eq!(refusal(store.get(&agent("acme", "a\0"), id()).await), Refusal::NotFound);
        assert_eq!(store.count().await.unwrap(), TaskCount::default());
    }
}

/// Only to write the corpus above in one list.
trait FromStaticStr {
    fn from_static_str(text: &'static str) -> Self;
}

impl FromStaticStr for Bytes {
    fn from_static_str(text: &'static str) -> Self {
        Self::from_static(text.as_bytes())
    }
}

#[tokio::test]
async fn a_database_without_the_schema_names_the_command() {
    let url = World::empty_postgres().await;
    let bus = std::sync::Arc::new(longhaul_bus::LocalBus::new());
    let config = longhaul_taskstore::Config {
        database_url: url.clone(),
        allow_unsafe_durability: true,
        ..longhaul_taskstore::Config::default()
    };
    let Err(error) = longhaul_taskstore::TaskStore::build(config.clone(), bus.clone(), keyring()).await else {
        panic!("no schema")
    };
    assert!(error.to_string().contains("`longhaul migrate`"), "{error}");
    // Twice is as good as once, and two at the same time wait for each other.
    let (one, two) = tokio::join!(longhaul_taskstore::migrate(&url), longhaul_taskstore::migrate(&url));
    one.and(two).unwrap();
    longhaul_taskstore::migrate(&url).await.unwrap();
    longhaul_taskstore::TaskStore::build(config, bus, keyring()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_may_lose_commits_is_refused() {
    let world = World::postgres().await;
    // This database's own setting, whatever the test server has.
    let name = world.url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
    world.execute_owned(format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
    let config = longhaul_taskstore::Config { allow_unsafe_durability: false, ..world.config() };
    let Err(error) = longhaul_taskstore::TaskStore::build(config, world.bus.clone(), keyring()).await else {
        panic!("unsafe")
    };
    assert!(error.to_string().contains("would lose acknowledged tasks"), "{error}");
}
