//! Credentials and switches.

use std::time::Duration;

use futures::future::join_all;
use longhaul_bus::{Control as ControlHint, Hint};
use longhaul_core::{Caller, Ending, Phase, Scope, TenantId};
use longhaul_rpc::{
    Control as _, CredentialInfo, Error, KeyDigest, NewCredential, SWITCHES_MAX, SWITCHES_PAGE, Stopped, Switched,
    Tasks as _,
};
use longhaul_taskstore::TaskStore;

use crate::on_both_engines;
use crate::world::*;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn new(id: &str, tenant: &str, key: u8, expires_in: Option<Duration>) -> NewCredential {
    NewCredential { id: id.into(), tenant: TenantId::new(tenant), agent: "ann".into(), sha256: [key; 32], expires_in }
}

async fn create(store: &TaskStore, id: &str, tenant: &str, key: u8) -> CredentialInfo {
    store.create_credential(new(id, tenant, key, None)).await.unwrap().unwrap()
}

/// The keys that a gateway accepts that has followed all changes so far.
async fn accepted(store: &TaskStore) -> Vec<(String, KeyDigest)> {
    let changes = store.credential_changes(0).await.unwrap().changes;
    let keys =
        changes.into_iter().flat_map(|change| change.keys.into_iter().map(move |key| (change.id.clone(), key.0)));
    keys.collect()
}

fn tool(name: &str) -> Scope {
    Scope { tool: Some(name.into()), ..Scope::default() }
}

fn agent_of(tenant: Option<&str>, agent: &str) -> Scope {
    Scope { tenant: tenant.map(TenantId::new), caller: Some(Caller::Agent(agent.into())), ..Scope::default() }
}

async fn events(world: &World) -> Vec<String> {
    world
        .texts(
            "SELECT event || ' ' || CASE tenant WHEN '' THEN '*' ELSE tenant END || ' ' || subject || ' ' || coalesce(reason, '')
             FROM audit WHERE event NOT LIKE 'mcp.task.%' ORDER BY id",
        )
        .await
}

on_both_engines! {
    async fn a_credential_is_created_rotated_and_revoked_and_each_is_a_change_and_an_event(world) {
        let store = world.store().await;
        let mut heard = world.bus.subscribe();
        let made = store.create_credential(new("a", "acme", 1, Some(DAY))).await.unwrap().unwrap();
        assert_eq!((&*made.id, made.tenant.as_str(), &*made.agent), ("a", "acme", "ann"));
        assert_eq!(made.expires_at, Some(made.created_at.plus(DAY)));
        assert_eq!((made.rotated_at, made.former_until, made.revoked_at), (None, None, None));
        assert_eq!(heard.try_recv(), Ok(Hint::Control(ControlHint::Credentials)));
        // Said twice, it is the same one.
        assert_eq!(store.create_credential(new("a", "acme", 1, Some(HOUR))).await.unwrap(), Some(made.clone()));
        let first = store.credential_changes(0).await.unwrap();
        assert_eq!(first.changes[0].keys, [([1; 32], made.expires_at)]);
        let since = first.changes[0].number;
        assert_eq!(store.credential_changes(since).await.unwrap().changes, []);

        let rotated = store.rotate_credential("a", [2; 32], HOUR, None).await.unwrap().unwrap();
        assert_eq!(rotated.expires_at, made.expires_at);
        let until = rotated.former_until.unwrap();
        assert_eq!(until, rotated.rotated_at.unwrap().plus(HOUR));
        let again = store.rotate_credential("a", [2; 32], DAY, None).await.unwrap().unwrap();
        assert_eq!(again, rotated, "said twice, it is done once");
        let changes = world.store().await.credential_changes(since).await.unwrap().changes;
        let [change] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(change.keys, [([2; 32], made.expires_at), ([1; 32], Some(until))]);
        // The overlap ends with the former key's own life; a new life is the new key's.
        let last = store.rotate_credential("a", [3; 32], 9 * DAY, Some(2 * DAY)).await.unwrap().unwrap();
        assert_eq!(last.former_until, made.expires_at);
        assert_eq!(last.expires_at, Some(last.rotated_at.unwrap().plus(2 * DAY)));
        assert_eq!(accepted(&store).await, [("a".into(), [3; 32]), ("a".into(), [2; 32])]);

        let revoked = store.revoke_credential("a").await.unwrap().unwrap();
        assert!(revoked.revoked_at.is_some());
        assert_eq!(store.revoke_credential("a").await.unwrap(), Some(revoked));
        assert_eq!(accepted(&store).await, []);
        assert_eq!(store.rotate_credential("a", [4; 32], HOUR, None).await.unwrap(), None);
        assert_eq!(store.revoke_credential("b").await.unwrap(), None);
        assert_eq!(store.rotate_credential("b", [4; 32], HOUR, None).await.unwrap(), None);
        assert_eq!(events(&world).await, [
            "mcp.credential.created acme a ",
            "mcp.credential.rotated acme a ",
            "mcp.credential.rotated acme a ",
            "mcp.credential.revoked acme a ",
        ]);
    }

    async fn an_expired_credential_cannot_be_rotated_back_to_life_and_is_forgotten_in_the_end(world) {
        let store = world.store().await;
        store.create_credential(new("a", "acme", 1, Some(HOUR))).await.unwrap().unwrap();
        create(&store, "b", "acme", 2).await;
        store.advance_clock(2 * HOUR).await.unwrap();
        assert_eq!(store.rotate_credential("a", [3; 32], HOUR, None).await.unwrap(), None);
        store.purge().await.unwrap();
        assert_eq!(store.credentials(None, "").await.unwrap().len(), 2, "it is still listed");
        assert_eq!(store.credential_changes(0).await.unwrap().forgotten, 0);
        let all = store.credential_changes(0).await.unwrap().changes;
        store.advance_clock(31 * DAY).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(accepted(&store).await, [("b".into(), [2; 32])]);
        assert_eq!(store.credential_changes(0).await.unwrap().forgotten, all[0].number);
    }

    async fn credentials_are_listed_by_tenant_and_after_an_id(world) {
        let store = world.store().await;
        for (id, tenant, key) in [("c", "acme", 1), ("a", "acme", 2), ("b", "other", 3)] {
            create(&store, id, tenant, key).await;
        }
        let ids = async |tenant, after| {
            let page = store.credentials(tenant, after).await.unwrap();
            page.into_iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(None, "").await, ["a", "b", "c"]);
        assert_eq!(ids(None, "a").await, ["b", "c"]);
        assert_eq!(ids(Some("acme"), "").await, ["a", "c"]);
        assert_eq!(ids(Some("acme"), "a").await, ["c"]);
        assert_eq!(ids(Some("nobody"), "").await, [""; 0]);
        assert_eq!(ids(Some("\0"), "").await, [""; 0]);
        for bad in [new("", "t", 4, None), new("d", "", 4, None), new("d", "\n", 4, None), new("d", &"x".repeat(257), 4, None)] {
            assert!(matches!(store.create_credential(bad.clone()).await, Err(Error::Fault(_))), "{bad:?}");
        }
        assert!(matches!(store.create_credential(new("d", "t", 1, None)).await, Err(Error::Fault(_))), "a key of another");
    }

    async fn changes_at_the_same_time_are_seen_in_the_order_of_their_numbers(world) {
        let stores = [world.store().await, world.store().await];
        let writers = (0..40u8).map(|at| {
            let store = stores[usize::from(at % 2)].clone();
            spawn(async move { store.create_credential(new(&format!("c{at}"), "acme", at, None)).await.unwrap() })
        });
        let writers: Vec<_> = writers.collect();
        // Whoever follows misses none, whenever it looks.
        let (mut since, mut seen) = (0, Vec::new());
        while seen.len() < 40 {
            for change in stores[0].credential_changes(since).await.unwrap().changes {
                assert!(change.number > since);
                since = change.number;
                seen.push(change.id);
            }
            tokio::task::yield_now().await;
            if writers.iter().all(|writer| writer.is_finished()) && stores[0].credential_changes(since).await.unwrap().changes.is_empty() {
                break;
            }
        }
        for writer in join_all(writers).await {
            assert!(writer.unwrap().is_some());
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    }

    async fn a_switch_is_what_was_last_said_of_its_very_scope(world) {
        let store = world.store().await;
        let mut heard = world.bus.subscribe();
        assert_eq!(store.set_switch(&tool("echo"), false, "x").await.unwrap(), Switched::Same);
        assert_eq!(store.switch_changes(0).await.unwrap().changes, []);
        assert_eq!(store.set_switch(&tool("echo"), true, "it burns").await.unwrap(), Switched::Changed);
        assert!(heard.try_recv().is_ok_and(|hint| hint == Hint::Control(ControlHint::Switches)));
        assert_eq!(store.set_switch(&tool("echo"), true, "it burns").await.unwrap(), Switched::Same);
        assert_eq!(store.set_switch(&tool("echo"), true, "it still burns").await.unwrap(), Switched::Changed);
        let narrow = Scope { tenant: Some(TenantId::new("acme")), ..tool("echo") };
        let person = Caller::Person { app: "a/b".into(), person: "é".into() };
        let everything = Scope::default();
        let by = Scope { caller: Some(person), ..Scope::default() };
        for scope in [&narrow, &by, &everything] {
            assert_eq!(store.set_switch(scope, true, "why").await.unwrap(), Switched::Changed);
        }
        assert_eq!(store.set_switch(&narrow, false, "out").await.unwrap(), Switched::Changed);
        let changes = world.store().await.switch_changes(0).await.unwrap().changes;
        let said: Vec<_> = changes.iter().map(|one| (&one.scope, one.off, &*one.why)).collect();
        let burns = tool("echo");
        assert_eq!(said, [
            (&burns, true, "it still burns"),
            (&by, true, "why"),
            (&everything, true, "why"),
            (&narrow, false, "out"),
        ]);
        assert_eq!(store.switch_changes(changes[2].number).await.unwrap().changes, changes[3..]);
        assert_eq!(events(&world).await[..2], [
            "mcp.switch.changed * - 4:echo - off: it burns",
            "mcp.switch.changed * - 4:echo - off: it still burns",
        ]);
        assert_eq!(events(&world).await.last().unwrap(), "mcp.switch.changed acme 4:acme 4:echo - on: out");
        for (scope, why) in [(tool(""), "x"), (tool("a\0"), "x"), (tool("a"), ""), (tool("a"), "a\nb")] {
            assert!(matches!(store.set_switch(&scope, true, why).await, Err(Error::Fault(_))), "{scope}: {why:?}");
        }
        // One that is on is forgotten in the end, one that is off never.
        store.advance_clock(31 * DAY).await.unwrap();
        store.purge().await.unwrap();
        let left = store.switch_changes(0).await.unwrap();
        assert_eq!((left.changes.as_slice(), left.forgotten), (&changes[..3], changes[3].number));
    }

    async fn so_many_scopes_are_off_and_no_more(world) {
        let store = world.store().await;
        let all: Vec<_> = (0..SWITCHES_MAX).map(|at| tool(&format!("t{at}"))).collect();
        for some in all.chunks(50) {
            for set in join_all(some.iter().map(|scope| store.set_switch(scope, true, "why"))).await {
                assert_eq!(set.unwrap(), Switched::Changed);
            }
        }
        assert_eq!(store.set_switch(&tool("more"), true, "why").await.unwrap(), Switched::Full);
        assert_eq!(store.set_switch(&tool("more"), false, "why").await.unwrap(), Switched::Same);
        assert_eq!(store.set_switch(&all[3], true, "another").await.unwrap(), Switched::Changed);
        assert_eq!(store.set_switch(&all[4], false, "room").await.unwrap(), Switched::Changed);
        assert_eq!(store.set_switch(&tool("more"), true, "why").await.unwrap(), Switched::Changed);
        let (mut since, mut seen) = (0, 0);
        loop {
            let page = store.switch_changes(since).await.unwrap().changes;
            seen += page.len();
            let Some(last) = page.last() else { break };
            assert!(page.len() <= SWITCHES_PAGE && last.number > since);
            since = last.number;
        }
        assert_eq!(seen, SWITCHES_MAX + 1);
    }

    async fn stopping_cancels_the_open_tasks_of_the_scope_and_no_others(world) {
        let store = world.store().await;
        let (ann, bob, eve) = (agent("acme", "ann"), agent("acme", "bob"), agent("other", "ann"));
        let runs = running(&store, &ann).await.id;
        let queued = store.create(new_task(&ann)).await.unwrap().id;
        let [bobs, eves] = [&bob, &eve].map(|owner| (owner, new_task(owner)));
        let bobs = store.create(bobs.1).await.unwrap().id;
        let eves = store.create(eves.1).await.unwrap().id;
        let stop = async |scope: &Scope| store.stop_running(scope).await.unwrap();
        assert_eq!(stop(&tool("another")).await, Stopped { stopped: 0, more: false });
        assert_eq!(stop(&agent_of(Some("acme"), "eve")).await.stopped, 0);
        assert_eq!(stop(&Scope { tool: Some("echo".into()), ..agent_of(Some("acme"), "ann") }).await.stopped, 2);
        for id in [runs, queued] {
            assert_eq!(store.get(&ann, id).await.unwrap().phase, Phase::Ended(Ending::Cancelled));
        }
        assert!(store.get(&bob, bobs).await.unwrap().ending().is_none());
        assert_eq!(stop(&agent_of(None, "ann")).await.stopped, 1);
        assert_eq!(store.get(&eve, eves).await.unwrap().phase, Phase::Ended(Ending::Cancelled));
        assert_eq!(stop(&Scope::default()).await, Stopped { stopped: 1, more: false });
        assert_eq!(stop(&Scope::default()).await, Stopped { stopped: 0, more: false });
        let ends = world.texts("SELECT task_id FROM audit WHERE event = 'mcp.task.cancelled'").await;
        assert_eq!(ends.len(), 4);
        // In batches.
        let store = world.store_with(|config| { config.max_open = 0; config.max_live = 0; }).await;
        for _ in 0..6 {
            join_all((0..100).map(|_| store.create(new_task(&ann)))).await.into_iter().for_each(|made| drop(made.unwrap()));
        }
        assert_eq!(stop(&tool("echo")).await, Stopped { stopped: 500, more: true });
        assert_eq!(stop(&tool("echo")).await, Stopped { stopped: 100, more: false });
    }
}
