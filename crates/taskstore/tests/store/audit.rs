//! The audit log: what is recorded apart, the chains, retention.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_core::audit::{Broken, Entry, Link, Record, Refused, RefusedBy, Sealed, Walk};
use longhaul_core::{Caller, Check, NewTask, Principal, Scope, TaskId, TenantId, TtlWish};
use longhaul_rpc::{
    AUDIT_PAGE, AuditRange, Batch, CHAINS_PAGE, Control, Error, NewCredential, RECORDS_MAX, Tasks as _,
};
use longhaul_taskstore::TaskStore;
use tokio_util::sync::CancellationToken;

use crate::on_both_engines;
use crate::world::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn refused(principal: &Principal, by: RefusedBy, times: u32) -> Record {
    let trace_id = Some("4bf92f3577b34da6a3ce929d0e0e4736".into());
    let called = "echo".into();
    Record::Refused(Refused { principal: principal.clone(), called, by, trace_id, times, ago: Duration::from_secs(5) })
}

fn batch(id: u128, records: Vec<Record>) -> Batch {
    Batch { id, records }
}

async fn seal_all(store: &TaskStore) -> u64 {
    let mut sealed = 0;
    loop {
        match store.seal().await.unwrap() {
            0 => return sealed,
            more => sealed += more,
        }
    }
}

/// The rows of a chain.
async fn rows(store: &TaskStore, tenant: &str) -> Vec<Sealed> {
    let mut rows: Vec<Sealed> = Vec::new();
    loop {
        let after = rows.last().map_or(0, |row| row.seq);
        let range = AuditRange { tenant: TenantId::new(tenant), after, since: None };
        let page = store.audit_rows(range).await.unwrap();
        if page.is_empty() {
            return rows;
        }
        assert!(page.len() <= AUDIT_PAGE);
        rows.extend(page);
    }
}

/// Goes along a chain from its anchor to its head.
async fn prove(store: &TaskStore, tenant: &str) -> Result<Link, Broken> {
    let tenant = TenantId::new(tenant);
    let chains = store.audit_chains(None).await.unwrap();
    let chain = chains.into_iter().find(|chain| chain.tenant == tenant).expect("a chain");
    let mut walk = Walk::behind(chain.anchor);
    for row in rows(store, tenant.as_str()).await {
        walk.step(&tenant, &row)?;
    }
    if walk.last() == chain.head { Ok(chain.head) } else { Err(Broken::Missing(walk.last().seq + 1)) }
}

async fn some_tasks(store: &TaskStore, owner: &Principal, many: usize) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..many {
        let task = store.create(new_task(owner)).await.unwrap();
        store.cancel(owner, task.id).await.unwrap();
        ids.push(task.id);
    }
    ids
}

on_both_engines! {
    async fn what_is_recorded_is_sealed_into_a_chain_for_each_tenant(world) {
        let store = world.store().await;
        let (ann, eve) = (ann(), agent("umbrella", "eve"));
        let ids = some_tasks(&store, &ann, 2).await;
        some_tasks(&store, &eve, 1).await;
        assert_eq!(rows(&store, "acme").await, [], "nothing is sealed yet, and all is in the log");
        let events = "SELECT event FROM audit ORDER BY id";
        let (created, cancelled) = ("mcp.task.created", "mcp.task.cancelled");
        assert_eq!(world.texts(events).await, [created, cancelled, created, cancelled, created, cancelled]);
        assert_eq!(store.seal().await.unwrap(), 6);
        assert_eq!(store.seal().await.unwrap(), 0);
        assert_eq!(world.texts(events).await, [created, cancelled, created, cancelled, created, cancelled]);

        let rows = rows(&store, "acme").await;
        let told: Vec<_> = rows.iter().map(|row| (row.seq, &*row.entry.event, row.entry.task.clone().unwrap())).collect();
        let [one, two] = [ids[0].to_string(), ids[1].to_string()];
        assert_eq!(told, [(1, created, one.clone()), (2, cancelled, one), (3, created, two.clone()), (4, cancelled, two)]);
        let last = &rows[3].entry;
        assert_eq!((last.owner.clone(), last.tool.as_deref(), last.version), (Some(ann.owner()), Some("echo"), Some(2)));
        assert_eq!((last.reason.as_deref(), last.times, &last.subject), (Some("cancelled"), 1, &None));
        assert_eq!(prove(&store, "acme").await.unwrap().seq, 4);
        assert_eq!(prove(&store, "umbrella").await.unwrap().seq, 2);
        // What comes later goes behind.
        some_tasks(&store, &ann, 1).await;
        seal_all(&store).await;
        assert_eq!(prove(&store, "acme").await.unwrap().seq, 6);
    }

    async fn a_batch_is_recorded_once_however_often_it_is_said(world) {
        let (store, other) = (world.store().await, world.store().await);
        let person = Principal {
            tenant: TenantId::new("acme"),
            caller: Caller::Person { app: "desk".into(), person: "p".into() },
        };
        let records = vec![
            refused(&ann(), RefusedBy::Check(Check::RateLimit), 7),
            refused(&person, RefusedBy::TaskLimit, 1),
        ];
        for store in [&store, &other, &store] {
            Control::record(store, batch(1, records.clone())).await.unwrap();
        }
        Control::record(&other, batch(2, records[..1].to_vec())).await.unwrap();
        seal_all(&store).await;
        let rows = rows(&store, "acme").await;
        let told: Vec<_> = rows.iter().map(|row| (row.entry.reason.clone().unwrap(), row.entry.times)).collect();
        assert_eq!(told, [("rate_limit".into(), 7), ("task_limit".into(), 1), ("rate_limit".into(), 7)]);
        let entry = &rows[1].entry;
        assert_eq!((&*entry.event, entry.owner.clone()), ("mcp.call.refused", Some(person.owner())));
        assert_eq!((entry.tool.as_deref(), &entry.task, entry.version), (Some("echo"), &None, None));
        assert_eq!(entry.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        let ago = rows[1].sealed_at.as_micros() - entry.at.as_micros();
        assert!((5_000_000..65_000_000).contains(&ago), "{ago}: it happened five seconds before it was recorded");
    }

    async fn a_task_is_retrieved_once_and_not_before_it_has_ended(world) {
        let (store, other) = (world.store().await, world.store().await);
        let ended = some_tasks(&store, &ann(), 40).await;
        let open = store.create(new_task(&ann())).await.unwrap().id;
        let all = || ended.iter().copied().chain([open, id()]).map(Record::Retrieved).collect::<Vec<_>>();
        let back = || all().into_iter().rev().collect::<Vec<_>>();
        // Two gateways at once, in two orders.
        let (one, two) = tokio::join!(Control::record(&store, batch(1, all())), Control::record(&other, batch(2, back())));
        one.unwrap();
        two.unwrap();
        Control::record(&store, batch(3, all())).await.unwrap();
        let retrieved = "SELECT task_id FROM audit WHERE event = 'mcp.task.retrieved'";
        let told: BTreeSet<_> = world.texts(retrieved).await.into_iter().collect();
        assert_eq!(world.texts(retrieved).await.len(), ended.len());
        assert_eq!(told, ended.iter().map(TaskId::to_string).collect());
        let as_ended = "SELECT event || ' ' || CAST(version AS text) || ' ' || reason FROM audit WHERE version = 2";
        let as_ended: BTreeSet<_> = world.texts(as_ended).await.into_iter().collect();
        let expected = ["mcp.task.cancelled 2 cancelled", "mcp.task.retrieved 2 cancelled"].map(String::from);
        assert_eq!(as_ended, expected.into());
        // The task itself has not changed, and after its end nothing is remembered of it.
        assert_eq!(store.get(&ann(), ended[0]).await.unwrap().version, 2);
        store.advance_clock(3 * DAY).await.unwrap();
        store.expire().await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT task_id FROM retrievals").await, [""; 0]);
        assert_eq!(world.texts("SELECT id FROM audit_batches").await, [""; 0]);
    }

    async fn what_operators_decide_is_in_the_chain_of_whom_it_concerns(world) {
        let store = world.store().await;
        let (id, tenant, sha256) = ("c".to_owned(), TenantId::new("acme"), [7; 32]);
        let new = NewCredential { id, tenant: tenant.clone(), agent: "é".into(), sha256, expires_in: None };
        store.create_credential(new).await.unwrap();
        store.rotate_credential("c", [8; 32], DAY, None).await.unwrap();
        store.revoke_credential("c").await.unwrap();
        let caller = Some(Caller::Agent("ann".into()));
        let narrow = Scope { tenant: Some(tenant), tool: Some("echo".into()), caller: caller.clone() };
        store.set_switch(&narrow, true, "it burns").await.unwrap();
        store.set_switch(&Scope::default(), true, "all of it").await.unwrap();
        seal_all(&store).await;
        let told = |row: &Sealed| {
            let Entry { event, owner, tool, reason, subject, .. } = row.entry.clone();
            (event, owner, tool, reason, subject.unwrap())
        };
        let credential = |event: &str| (event.to_owned(), Some("agent:2:é".to_owned()), None, None, "c".to_owned());
        let switched = |scope: &Scope, why: &str| {
            let owner = scope.caller.as_ref().map(Caller::owner);
            ("mcp.switch.changed".to_owned(), owner, scope.tool.clone(), Some(format!("off: {why}")), scope.key())
        };
        let acme = [
            credential("mcp.credential.created"),
            credential("mcp.credential.rotated"),
            credential("mcp.credential.revoked"),
            switched(&narrow, "it burns"),
        ];
        assert_eq!(rows(&store, "acme").await.iter().map(told).collect::<Vec<_>>(), acme);
        let everyone = switched(&Scope::default(), "all of it");
        assert_eq!(rows(&store, "").await.iter().map(told).collect::<Vec<_>>(), [everyone]);
        assert_eq!((prove(&store, "acme").await.unwrap().seq, prove(&store, "").await.unwrap().seq), (4, 1));
    }

    async fn what_cannot_be_stored_keeps_nothing_else_out(world) {
        let store = world.store().await;
        let odd = agent("acme", "a\0b");
        let records = vec![refused(&odd, RefusedBy::TaskLimit, 1), refused(&ann(), RefusedBy::TaskLimit, 1)];
        Control::record(&store, batch(1, records)).await.unwrap();
        assert_eq!(world.texts("SELECT owner FROM audit").await, [ann().owner()]);
        let many = vec![refused(&ann(), RefusedBy::TaskLimit, 1); RECORDS_MAX + 1];
        assert!(matches!(Control::record(&store, batch(2, many)).await, Err(Error::Fault(_))));
        let range = AuditRange { tenant: TenantId::new("a\0"), after: 0, since: None };
        assert!(matches!(store.audit_rows(range).await, Err(Error::Fault(_))));
        Control::record(&store, batch(3, Vec::new())).await.unwrap();
    }

    async fn many_writers_and_two_sealers_make_whole_chains(world) {
        let stores = [world.store_with(|c| (c.max_open, c.max_live) = (0, 0)).await, world.store_with(|c| (c.max_open, c.max_live) = (0, 0)).await];
        let done = CancellationToken::new();
        let sealers = stores.clone().map(|store| {
            let done = done.clone();
            spawn(async move {
                while !done.is_cancelled() {
                    store.seal().await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        });
        let writers: Vec<_> = (0..8)
            .map(|nth| {
                let (store, owner) = (stores[nth % 2].clone(), agent(["acme", "umbrella", "hooli"][nth % 3], "a"));
                spawn(async move { some_tasks(&store, &owner, 40).await })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        done.cancel();
        for sealer in sealers {
            sealer.await.unwrap();
        }
        seal_all(&stores[0]).await;
        let mut all = 0;
        for tenant in ["acme", "umbrella", "hooli"] {
            all += prove(&stores[1], tenant).await.unwrap().seq;
            // No effect before its cause.
            let mut created = BTreeSet::new();
            for row in rows(&stores[1], tenant).await {
                let task = row.entry.task.unwrap();
                assert_eq!(created.insert(task), row.entry.event == "mcp.task.created");
            }
        }
        assert_eq!(all, 8 * 40 * 2);
        assert_eq!(world.texts("SELECT event FROM audit_inbox").await, [""; 0]);
    }

    async fn more_rows_than_fit_a_page_or_a_batch_are_sealed_and_read(world) {
        let store = world.store().await;
        let tenants = CHAINS_PAGE + 3;
        for chunk in (0..tenants).collect::<Vec<_>>().chunks(RECORDS_MAX) {
            let records = chunk.iter().map(|nth| refused(&agent(&format!("t{nth:04}"), "a"), RefusedBy::TaskLimit, 1));
            Control::record(&store, batch(chunk[0] as u128 + 100, records.collect())).await.unwrap();
        }
        for nth in 0..3 {
            let records = vec![refused(&ann(), RefusedBy::TaskLimit, 1); RECORDS_MAX];
            Control::record(&store, batch(nth, records)).await.unwrap();
        }
        assert_eq!(store.seal().await.unwrap(), (tenants + 3 * RECORDS_MAX) as u64);
        assert_eq!(rows(&store, "acme").await.len(), 3 * RECORDS_MAX);
        assert_eq!(prove(&store, "acme").await.unwrap().seq, (3 * RECORDS_MAX) as u64);
        let first = store.audit_chains(None).await.unwrap();
        assert_eq!((first.len(), first[0].tenant.as_str()), (CHAINS_PAGE, "acme"));
        let rest = store.audit_chains(Some(&first[CHAINS_PAGE - 1].tenant)).await.unwrap();
        assert_eq!(rest[0], first[CHAINS_PAGE - 1]);
        assert_eq!(rest.len(), tenants + 2 - CHAINS_PAGE);
        assert!(first.iter().chain(&rest).all(|chain| chain.head.seq > 0 && chain.anchor == Link::default()));
    }

    async fn rows_are_found_by_when_they_were_sealed(world) {
        let store = world.store().await;
        some_tasks(&store, &ann(), 2).await;
        seal_all(&store).await;
        store.advance_clock(Duration::from_secs(100)).await.unwrap();
        some_tasks(&store, &ann(), 1).await;
        seal_all(&store).await;
        let all = rows(&store, "acme").await;
        let since = all[3].sealed_at.plus(Duration::from_secs(50));
        let range = |after| AuditRange { tenant: TenantId::new("acme"), after, since: Some(since) };
        assert_eq!(store.audit_rows(range(0)).await.unwrap(), all[4..]);
        assert_eq!(store.audit_rows(range(5)).await.unwrap(), all[5..]);
    }

    async fn whoever_touches_the_log_breaks_the_chain_where_it_was_touched(world) {
        let store = world.store().await;
        let ann = ann();
        // A copy of an untouched log, for each forgery.
        some_tasks(&store, &ann, 3).await;
        seal_all(&store).await;
        let head = prove(&store, "acme").await.unwrap();
        assert_eq!(head.seq, 6);
        for table in ["audit_log", "audit_heads"] {
            world.execute_any(format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}")).await;
        }
        let copy = |seq: &str, sealed_at: &str, from: u64| {
            let rest = "tenant, hash, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times";
            let select = format!("SELECT {seq}, {sealed_at}, {rest} FROM audit_log WHERE seq = {from}");
            format!("INSERT INTO audit_log (seq, sealed_at, {rest}) {select}")
        };
        let forgeries = [
            ("UPDATE audit_log SET owner = 'agent:3:eve' WHERE seq = 3".to_owned(), Broken::Changed(3)),
            ("UPDATE audit_log SET reason = NULL WHERE seq = 4".to_owned(), Broken::Changed(4)),
            ("UPDATE audit_log SET at = at - 1 WHERE seq = 1".to_owned(), Broken::Changed(1)),
            (format!("UPDATE audit_log SET hash = {} WHERE seq = 2", world.blob("x")), Broken::Changed(2)),
            ("DELETE FROM audit_log WHERE seq = 1".to_owned(), Broken::Missing(1)),
            ("DELETE FROM audit_log WHERE seq = 4".to_owned(), Broken::Missing(4)),
            ("DELETE FROM audit_log WHERE seq >= 5".to_owned(), Broken::Missing(5)),
            (copy("7", "sealed_at", 6), Broken::Changed(7)),
            (copy("9", "sealed_at", 6), Broken::Missing(7)),
            (copy("seq", "sealed_at + 1", 3), Broken::Extra(3)),
            ("UPDATE audit_log SET seq = CASE seq WHEN 2 THEN 13 WHEN 3 THEN 2 ELSE seq END; UPDATE audit_log SET seq = 3 WHERE seq = 13".to_owned(), Broken::Changed(2)),
            ("DELETE FROM audit_heads".to_owned(), Broken::Missing(7)),
        ];
        for (forgery, broken) in forgeries {
            for statement in forgery.split("; ") {
                world.execute_any(statement.to_owned()).await;
            }
            let found = if forgery == "DELETE FROM audit_heads" {
                // The rows are still seen.
                let chains = store.audit_chains(None).await.unwrap();
                assert_eq!((chains.len(), chains[0].head), (1, Link::default()));
                Err(Broken::Missing(7))
            } else {
                prove(&store, "acme").await
            };
            assert_eq!(found, Err(broken), "{forgery}");
            for table in ["audit_log", "audit_heads"] {
                world.execute_any(format!("DELETE FROM {table}")).await;
                world.execute_any(format!("INSERT INTO {table} SELECT * FROM kept_{table}")).await;
            }
            assert_eq!(prove(&store, "acme").await, Ok(head));
        }
    }

    async fn what_is_past_its_retention_goes_and_the_rest_is_still_proved(world) {
        let store = world.store_with(|config| config.audit_retention_days = 2).await;
        some_tasks(&store, &ann(), 2).await;
        some_tasks(&store, &agent("umbrella", "eve"), 1).await;
        seal_all(&store).await;
        // The next month, in which only one of them is heard of.
        store.advance_clock(32 * DAY).await.unwrap();
        some_tasks(&store, &ann(), 1).await;
        seal_all(&store).await;
        store.purge().await.unwrap();
        // In PostgreSQL a month goes when all of it is past: two days into the next one.
        store.advance_clock(Duration::from_secs(3600)).await.unwrap();
        store.purge().await.unwrap();
        let left = rows(&store, "acme").await;
        let first = left[0].seq;
        if world.is_postgres() {
            assert!([1, 5].contains(&first), "{first}");
            store.advance_clock(2 * DAY).await.unwrap();
            some_tasks(&store, &ann(), 1).await;
            seal_all(&store).await;
            store.purge().await.unwrap();
        }
        let left = rows(&store, "acme").await;
        assert_eq!(left[0].seq, 5);
        let chains = store.audit_chains(None).await.unwrap();
        let anchors: Vec<_> = chains.iter().map(|chain| (chain.tenant.as_str(), chain.anchor.seq)).collect();
        assert_eq!(anchors, [("acme", 4), ("umbrella", 2)]);
        assert_eq!(prove(&store, "acme").await.unwrap().seq, left.last().unwrap().seq);
        assert_eq!(prove(&store, "umbrella").await.unwrap().seq, 2, "all of it is gone");
        // One more forgery: the oldest row, as if it had been past its retention.
        world.execute_any("DELETE FROM audit_log WHERE seq = 5".to_owned()).await;
        assert_eq!(prove(&store, "acme").await, Err(Broken::Missing(5)));
    }

    async fn no_row_goes_before_its_task(world) {
        let store = world.store_with(|config| {
            config.audit_retention_days = 1;
            config.ttl.max_ms = 90 * 24 * 3_600_000;
        }).await;
        let longest = NewTask { ttl: TtlWish::Longest, ..new_task(&ann()) };
        store.create(longest.clone()).await.unwrap();
        seal_all(&store).await;
        store.advance_clock(89 * DAY).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(rows(&store, "acme").await.len(), 1);
        store.get(&ann(), longest.id).await.unwrap();
    }

    async fn without_retention_nothing_goes(world) {
        let store = world.store_with(|config| config.audit_retention_days = 0).await;
        some_tasks(&store, &ann(), 1).await;
        seal_all(&store).await;
        store.advance_clock(4000 * DAY).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(prove(&store, "acme").await.unwrap().seq, 2);
    }
}

/// A transaction that is under way when others are sealed, and commits later with the lower id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_committed_late_is_sealed_late_and_hinders_nobody() {
    use sqlx::postgres::PgConnectOptions;
    use sqlx::{ConnectOptions as _, Executor as _};
    use std::str::FromStr as _;

    let world = World::postgres().await;
    let store = world.store().await;
    let mut late = PgConnectOptions::from_str(&world.url).unwrap().connect().await.unwrap();
    late.execute("BEGIN").await.unwrap();
    late.execute("INSERT INTO audit_inbox (at, event, tenant) VALUES (longhaul_now(), 'mcp.switch.changed', 'acme')")
        .await
        .unwrap();
    some_tasks(&store, &ann(), 1).await;
    assert_eq!(store.seal().await.unwrap(), 2);
    late.execute("COMMIT").await.unwrap();
    some_tasks(&store, &ann(), 1).await;
    assert_eq!(store.seal().await.unwrap(), 3);
    let rows = rows(&store, "acme").await;
    assert!(rows[2].entry.id < rows[0].entry.id && rows[2].entry.event == "mcp.switch.changed", "{rows:?}");
    assert_eq!(prove(&store, "acme").await.unwrap().seq, 5);
}

/// Months are made ahead, and by one sweep however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn months_are_made_before_they_begin_by_any_number_of_sweeps() {
    let world = World::postgres().await;
    let stores = [world.store().await, world.store().await, world.store().await];
    for _ in 0..14 {
        let [one, two, three] = [&stores[0], &stores[1], &stores[2]].map(|store| store.seal());
        let (one, two, three) = tokio::join!(one, two, three);
        for sealed in [one, two, three] {
            sealed.unwrap();
        }
        stores[0].advance_clock(31 * DAY).await.unwrap();
    }
    let months = "SELECT relname::text FROM pg_class WHERE relname ~ '^audit_log_[0-9]{4}_[0-9]{2}$' AND relkind = 'r' ORDER BY 1";
    let made = world.texts(months).await;
    assert!((14..=16).contains(&made.len()), "{made:?}");
}
