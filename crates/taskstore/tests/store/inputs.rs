//! Questions, answers, tasks that are born running, carriers.

use std::time::Duration;

use arc_swap::ArcSwap;
use futures::{FutureExt as _, StreamExt as _};
use longhaul_bus::Hint;
use longhaul_core::{
    Claimed, ClientCapabilities, Ending, Fence, InputKey, InputRequest, InputResponse, Interruption, LeaseToken,
    LimitScope, NewTask, Phase, Principal, Question, Refusal, Task, TaskId, WorkerId,
};
use longhaul_rpc::{Directive, Error, Report, Tasks as _, Work as _};
use longhaul_seal::{KEY_BYTES, Keyring};
use longhaul_taskstore::TaskStore;

use crate::logs;
use crate::on_both_engines;
use crate::verbs::refusal;
use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Long enough for anything that happens at once, however slow the machine.
const SOON: Duration = Duration::from_secs(20);
const EVENTS: &str = "SELECT event FROM audit ORDER BY id";
const ANSWERS: &str = "SELECT task_id || ' ' || CAST(nth AS text) FROM answers ORDER BY task_id, nth";
const NONE: [&str; 0] = [];

fn named(key: &str) -> InputKey {
    InputKey::Named(key.into())
}

/// A running task that asks these questions, for an hour.
async fn asking(store: &TaskStore, owner: &Principal, keys: &[&str]) -> Task {
    let held = running(store, owner).await;
    let requests = keys.iter().map(|key| form(key, "Which?")).collect();
    store.request_input(fence(&held), requests, HOUR).await.unwrap()
}

fn open_keys(task: &Task) -> Vec<&str> {
    task.open_inputs().map(|(_, key, _)| key).collect()
}

fn born(owner: &Principal, worker: &WorkerId, token: &str) -> NewTask {
    let claimed = Claimed { worker: worker.clone(), token: LeaseToken(token.into()) };
    NewTask { claimed: Some(claimed), ..new_task(owner) }
}

on_both_engines! {
    async fn a_question_is_asked_answered_collected_and_forgotten(world) {
        let store = world.store().await;
        let held = running(&store, &ann()).await;
        let mut heard = world.bus.subscribe();
        let url = Question::Url { message: "Look\0".into(), url: "https://longhaul.dev/".into() };
        let requests = vec![form("colour", "Which \"é\" 😀?"), InputRequest { key: "page".into(), question: url }];
        let asked = store.request_input(fence(&held), requests.clone(), HOUR).await.unwrap();
        // The store does what the verb says, by its own clock.
        let until = asked.input_until().unwrap();
        let verb = held.clone().request_input(&fence(&held), requests, until).unwrap().task;
        assert_eq!(asked, Task { updated_at: asked.updated_at, ..verb });
        assert!(until >= held.updated_at.plus(HOUR) && until <= asked.updated_at.plus(HOUR));
        assert_eq!(store.get(&ann(), held.id).await.unwrap(), asked);
        assert_eq!(store.list(&ann(), None, 50).await.unwrap().tasks, std::slice::from_ref(&asked));
        assert_eq!(world.store().await.claim(wish(&worker("w"), &held.id.to_string(), 1)).await.unwrap()[0].task, asked);
        assert_eq!(store.collect(fence(&held), vec![]).await.unwrap(), []);

        let answered = store.respond(&ann(), held.id, vec![(named("colour"), colour("blue"))]).await.unwrap();
        let verb = asked.clone().respond(vec![(named("colour"), colour("blue"))]).unwrap().task;
        assert_eq!(answered, Task { updated_at: answered.updated_at, ..verb });
        assert_eq!(store.get(&ann(), held.id).await.unwrap(), answered);
        assert_eq!(open_keys(&answered), ["page"]);
        for _ in 0..2 {
            assert_eq!(store.collect(fence(&held), vec![]).await.unwrap(), [(1, colour("blue"))]);
        }
        let accepted = InputResponse::Accept(None);
        let answered = store.respond(&ann(), held.id, vec![(InputKey::Nth(2), accepted.clone())]).await.unwrap();
        assert!(!answered.is_asking() && answered.input_until().is_none());
        assert_eq!(store.collect(fence(&held), vec![]).await.unwrap(), [(1, colour("blue")), (2, accepted.clone())]);
        // What has arrived is deleted, and only that; numbers that no question has are nothing.
        for _ in 0..2 {
            assert_eq!(store.collect(fence(&held), vec![1, 1, 0, 7, u32::MAX]).await.unwrap(), [(2, accepted.clone())]);
        }
        assert_eq!(world.texts(ANSWERS).await, [format!("{} 2", held.id)]);
        assert_eq!(store.collect(fence(&held), vec![2]).await.unwrap(), []);
        assert_eq!(world.texts(ANSWERS).await, NONE);
        // A report leaves the questions as they are, and a closed question stays known.
        let report = Report { status_message: Some("on".into()), progress: None };
        let reported = store.report(fence(&held), report).await.unwrap();
        assert_eq!(reported.inputs, answered.inputs);
        assert_eq!(store.get(&ann(), held.id).await.unwrap(), reported);
        store.complete(fence(&held), done("{}")).await.unwrap();

        let hints: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert_eq!(hints, [3, 4, 5, 6, 7].map(|version| Hint::Task { id: held.id, version }));
        let (asked, answered) = ("mcp.task.input_required", "mcp.task.input_answered");
        assert_eq!(world.texts(EVENTS).await, ["mcp.task.created", asked, answered, answered, "mcp.task.completed"]);
        let versions = world.texts("SELECT CAST(version AS text) FROM audit ORDER BY id").await;
        assert_eq!(versions, ["1", "3", "4", "5", "7"]);
    }

    async fn the_same_questions_again_change_nothing(world) {
        let store = world.store().await;
        let held = running(&store, &ann()).await;
        let requests = || vec![form("a", "Which?"), form("b", "Which?")];
        assert_eq!(store.request_input(fence(&held), vec![], HOUR).await.unwrap(), held, "no question is no change");
        let asked = store.request_input(fence(&held), requests(), HOUR).await.unwrap();
        assert_eq!(world.store().await.request_input(fence(&held), requests(), MINUTE).await.unwrap(), asked);
        let answered = store.respond(&ann(), held.id, vec![(named("a"), InputResponse::Cancel)]).await.unwrap();
        assert_eq!(store.request_input(fence(&held), requests(), HOUR).await.unwrap(), answered);
        let used = Refusal::KeyUsed("a".into());
        assert_eq!(refusal(store.request_input(fence(&held), vec![form("a", "Which?"), form("c", "?")], HOUR).await), used);
        assert_eq!(store.get(&ann(), held.id).await.unwrap(), answered);
        assert_eq!(world.texts(EVENTS).await.len(), 3);
    }

    async fn a_question_that_is_given_up_is_closed_without_an_answer_and_without_a_line_in_the_audit_log(world) {
        let store = world.store().await;
        let asked = asking(&store, &ann(), &["a", "b"]).await;
        let mut heard = world.bus.subscribe();
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let withdrawn = store.withdraw(fence(&asked), keys(&["a"])).await.unwrap();
        let verb = asked.clone().withdraw(&fence(&asked), &keys(&["a"])).unwrap().task;
        assert_eq!(withdrawn, Task { updated_at: withdrawn.updated_at, ..verb });
        assert_eq!(store.get(&ann(), asked.id).await.unwrap(), withdrawn);
        assert_eq!(open_keys(&withdrawn), ["b"]);
        assert_eq!(world.store().await.withdraw(fence(&asked), keys(&["a"])).await.unwrap(), withdrawn, "once more");
        // An answer comes too late, and there is nothing to collect.
        assert_eq!(store.respond(&ann(), asked.id, vec![(named("a"), colour("blue"))]).await.unwrap(), withdrawn);
        assert_eq!(store.collect(fence(&asked), vec![]).await.unwrap(), []);
        // The same key asks nothing else; one that was withdrawn before it was asked is never asked.
        let again = store.request_input(fence(&asked), vec![form("a", "Which?"), form("c", "?")], HOUR).await;
        assert_eq!(refusal(again), Refusal::KeyUsed("a".into()));
        store.withdraw(fence(&asked), keys(&["c", "b"])).await.unwrap();
        let late = store.request_input(fence(&asked), vec![form("c", "Which?")], HOUR).await.unwrap();
        assert!(!late.is_asking() && late.input_until().is_none());
        assert_eq!(store.get(&ann(), asked.id).await.unwrap(), late);
        let hints: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert_eq!(hints, [4, 5].map(|version| Hint::Task { id: asked.id, version }));
        assert_eq!(world.texts(EVENTS).await, ["mcp.task.created", "mcp.task.input_required"]);
        let zombie = Fence { token: LeaseToken("another".into()), ..fence(&asked) };
        assert_eq!(refusal(store.withdraw(zombie, keys(&["a"])).await), Refusal::Fenced);
        store.cancel(&ann(), asked.id).await.unwrap();
        let over = Refusal::AlreadyEnded(Ending::Cancelled);
        assert_eq!(refusal(store.withdraw(fence(&asked), keys(&["a"])).await), over);
    }

    async fn only_who_holds_the_task_may_ask_and_collect(world) {
        let store = world.store().await;
        let task = asking(&store, &ann(), &["k"]).await;
        store.respond(&ann(), task.id, vec![(named("k"), colour("blue"))]).await.unwrap();
        let good = fence(&task);
        for zombie in [
            Fence { attempt: 0, ..good.clone() },
            Fence { attempt: 2, ..good.clone() },
            Fence { token: LeaseToken("another".into()), ..good.clone() },
        ] {
            assert_eq!(refusal(store.collect(zombie.clone(), vec![1]).await), Refusal::Fenced);
            assert_eq!(refusal(store.request_input(zombie.clone(), vec![form("k", "Which?")], HOUR).await), Refusal::Fenced);
            assert_eq!(refusal(store.request_input(zombie, vec![], HOUR).await), Refusal::Fenced);
        }
        let unknown = Fence { id: id(), ..good.clone() };
        assert_eq!(refusal(store.collect(unknown, vec![]).await), Refusal::NotFound);
        assert_eq!(store.collect(good.clone(), vec![]).await.unwrap(), [(1, colour("blue"))]);
        store.cancel(&ann(), task.id).await.unwrap();
        let over = Refusal::AlreadyEnded(Ending::Cancelled);
        assert_eq!(refusal(store.collect(good.clone(), vec![]).await), over);
        assert_eq!(refusal(store.request_input(good.clone(), vec![form("k", "Which?")], HOUR).await), over);
        assert_eq!(refusal(store.request_input(good, vec![form("l", "Which?")], HOUR).await), over);
    }

    async fn what_cannot_be_asked_is_refused(world) {
        let store = world.store().await;
        let new = NewTask { client: ClientCapabilities { elicitation_url: true, ..Default::default() }, ..new_task(&ann()) };
        let task = store.create(new.clone()).await.unwrap();
        assert_eq!(task.client, new.client);
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), task);
        let held = claim(&store, "t").await.task;
        assert_eq!(held.client, new.client);
        assert_eq!(refusal(store.request_input(fence(&held), vec![form("k", "Which?")], HOUR).await), Refusal::Unaskable);
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), held);
    }

    async fn answers_survive_a_restart_and_a_change_of_keys(world) {
        let mut world = world;
        let store = world.store().await;
        let task = asking(&store, &ann(), &["a", "b"]).await;
        let answers = vec![(named("b"), InputResponse::Decline), (named("a"), colour("blue"))];
        store.respond(&ann(), task.id, answers).await.unwrap();
        drop(store);
        let both = [(1, colour("blue")), (2, InputResponse::Decline)];
        assert_eq!(world.store().await.collect(fence(&task), vec![]).await.unwrap(), both);
        let keyring = |key: u8, former: &[[u8; KEY_BYTES]]| std::sync::Arc::new(ArcSwap::from_pointee(Keyring::new(&[key; KEY_BYTES], former)));
        world.keyring = keyring(2, &[[1; KEY_BYTES]]);
        assert_eq!(world.store().await.collect(fence(&task), vec![]).await.unwrap(), both);
        // What cannot be opened counts as declined, or the run would wait for ever; with its key the answer is back.
        world.keyring = keyring(2, &[]);
        let keyless = world.store().await;
        let declined = [(1, InputResponse::Decline), (2, InputResponse::Decline)];
        assert_eq!(keyless.collect(fence(&task), vec![]).await.unwrap(), declined);
        world.keyring.store(std::sync::Arc::new(Keyring::new(&[1; KEY_BYTES], &[])));
        assert_eq!(keyless.collect(fence(&task), vec![]).await.unwrap(), both);
    }

    async fn late_repeated_and_unknown_answers_change_nothing(world) {
        let store = world.store().await;
        let task = asking(&store, &ann(), &["a", "b"]).await;
        for nobodys in [
            vec![],
            vec![(named("c"), colour("red"))],
            vec![(InputKey::Nth(0), colour("red")), (InputKey::Nth(3), colour("red"))],
        ] {
            assert_eq!(store.respond(&ann(), task.id, nobodys).await.unwrap(), task);
        }
        for other in [agent("acme", "bob"), agent("umbrella", "ann")] {
            assert_eq!(refusal(store.respond(&other, task.id, vec![(named("a"), colour("red"))]).await), Refusal::NotFound);
        }
        assert_eq!(refusal(store.respond(&ann(), id(), vec![]).await), Refusal::NotFound);
        let first = store.respond(&ann(), task.id, vec![(named("a"), colour("blue"))]).await.unwrap();
        for late in [named("a"), InputKey::Nth(1)] {
            assert_eq!(world.store().await.respond(&ann(), task.id, vec![(late, colour("red"))]).await.unwrap(), first);
        }
        assert_eq!(store.collect(fence(&task), vec![]).await.unwrap(), [(1, colour("blue"))]);
        // After it has arrived too.
        store.collect(fence(&task), vec![1]).await.unwrap();
        assert_eq!(store.respond(&ann(), task.id, vec![(named("a"), colour("red"))]).await.unwrap(), first);
        assert_eq!(store.collect(fence(&task), vec![]).await.unwrap(), []);

        let ended = store.complete(fence(&task), done("{}")).await.unwrap();
        assert_eq!(store.respond(&ann(), task.id, vec![(named("b"), colour("red"))]).await.unwrap(), ended);
        assert_eq!(world.texts(ANSWERS).await, NONE);
        assert_eq!(world.texts(EVENTS).await.len(), 4);
        store.advance_clock(HOUR + MINUTE).await.unwrap();
        assert_eq!(refusal(store.respond(&ann(), task.id, vec![(named("b"), colour("red"))]).await), Refusal::Expired);
    }

    async fn of_two_answers_at_once_one_counts(world) {
        let stores = [world.store_with(|config| config.max_open = 0).await, world.store_with(|config| config.max_open = 0).await];
        let owner = ann();
        for _ in 0..30 {
            let task = asking(&stores[0], &owner, &["k"]).await;
            let (blue, red) = tokio::join!(
                stores[0].respond(&owner, task.id, vec![(named("k"), colour("blue"))]),
                stores[1].respond(&owner, task.id, vec![(named("k"), colour("red"))]),
            );
            let (blue, red) = (blue.unwrap(), red.unwrap());
            assert_eq!((blue.version, red.version, blue.is_asking()), (4, 4, false));
            let kept = stores[1].collect(fence(&task), vec![]).await.unwrap();
            assert!(kept == [(1, colour("blue"))] || kept == [(1, colour("red"))], "{kept:?}");
            stores[0].collect(fence(&task), vec![1]).await.unwrap();
        }
        let answered = "SELECT CAST(count(*) AS text) FROM audit WHERE event = 'mcp.task.input_answered'";
        assert_eq!(world.texts(answered).await, ["30"]);
    }

    async fn asking_and_answering_against_cancel_leaves_nothing_behind(world) {
        let stores = [world.store_with(|config| config.max_open = 0).await, world.store_with(|config| config.max_open = 0).await];
        let owner = ann();
        for _ in 0..20 {
            let task = asking(&stores[0], &owner, &["k"]).await;
            let (cancel, ask, answer, collect) = tokio::join!(
                stores[0].cancel(&owner, task.id),
                stores[1].request_input(fence(&task), vec![form("more", "Which?")], HOUR),
                stores[1].respond(&owner, task.id, vec![(named("k"), colour("blue"))]),
                stores[0].collect(fence(&task), vec![1]),
            );
            assert_eq!(cancel.unwrap().ending(), Some(Ending::Cancelled));
            let over = Refusal::AlreadyEnded(Ending::Cancelled);
            assert!(ask.is_ok() || matches!(&ask, Err(Error::Refused(refusal)) if *refusal == over), "{ask:?}");
            assert!(collect.is_ok() || matches!(&collect, Err(Error::Refused(refusal)) if *refusal == over), "{collect:?}");
            answer.unwrap();
            let ended = stores[1].get(&owner, task.id).await.unwrap();
            assert!(!ended.is_asking() && ended.ending().is_some(), "{ended:?}");
        }
        assert_eq!(world.texts(ANSWERS).await, NONE);
        assert_eq!(world.texts("SELECT id FROM tasks WHERE input_until IS NOT NULL").await, NONE);
    }

    async fn an_end_however_it_comes_withdraws_questions_and_deletes_answers(world) {
        let store = world.store().await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let task = asking(&store, &ann(), &["a", "b"]).await;
            tasks.push(store.respond(&ann(), task.id, vec![(named("a"), colour("blue"))]).await.unwrap());
        }
        let other = asking(&store, &ann(), &["a"]).await;
        store.respond(&ann(), other.id, vec![(named("a"), colour("red"))]).await.unwrap();
        store.interrupt().await.unwrap();
        let cancelled = store.cancel(&ann(), tasks[0].id).await.unwrap();
        let completed = store.complete(fence(&tasks[1]), done("{}")).await.unwrap();
        for ended in [cancelled, completed] {
            assert_eq!(ended, store.get(&ann(), ended.id).await.unwrap());
            assert_eq!((ended.inputs.len(), ended.is_asking()), (2, false));
        }
        store.advance_clock(LEASE - MINUTE).await.unwrap();
        assert_eq!(store.heartbeat(&worker("w"), vec![(other.id, 1)]).await.unwrap(), [Directive::Answered(other.id)]);
        store.interrupt().await.unwrap();
        store.advance_clock(2 * MINUTE).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 2);
        assert_eq!(world.texts(ANSWERS).await, [format!("{} 1", other.id)], "a neighbour keeps its own");
        let lost = Ending::Interrupted(Interruption::WorkerLost);
        assert_eq!(store.get(&ann(), tasks[2].id).await.unwrap().ending(), Some(lost));
        assert_eq!(refusal(store.collect(fence(&tasks[2]), vec![]).await), Refusal::AlreadyEnded(lost));
        store.advance_clock(HOUR).await.unwrap();
        assert_eq!(store.expire().await.unwrap(), 1);
        assert_eq!(world.texts(ANSWERS).await, NONE);
        assert_eq!(world.texts("SELECT id FROM tasks WHERE input_until IS NOT NULL").await, NONE);
    }

    async fn a_purge_leaves_no_answer_whoever_put_it_there(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        store.cancel(&ann(), task.id).await.unwrap();
        let sealed = world.blob("x");
        world.execute_any(format!("INSERT INTO answers (task_id, nth, sealed) SELECT id, 1, {sealed} FROM tasks")).await;
        assert_eq!(world.texts(ANSWERS).await, [format!("{} 1", task.id)]);
        store.advance_clock(2 * HOUR).await.unwrap();
        assert_eq!(store.purge().await.unwrap(), 1);
        assert_eq!(world.texts(ANSWERS).await, NONE);
    }

    async fn a_question_that_nobody_answers_in_time_counts_as_declined(world) {
        let store = world.store().await;
        let held = running(&store, &ann()).await;
        store.request_input(fence(&held), vec![form("soon", "Which?")], MINUTE).await.unwrap();
        let asked = store.request_input(fence(&held), vec![form("late", "Which?")], Duration::MAX).await.unwrap();
        let day = asked.updated_at.plus(24 * HOUR);
        let deadlines = world.texts("SELECT CAST(input_until AS text) FROM tasks").await;
        assert_eq!(deadlines, [asked.input_until().unwrap().as_micros().to_string()]);
        assert_eq!(store.lapse().await.unwrap(), 0);
        store.advance_clock(2 * MINUTE).await.unwrap();
        let mut heard = world.bus.subscribe();
        assert_eq!(store.lapse().await.unwrap(), 1);
        assert_eq!(store.lapse().await.unwrap(), 0);
        assert_eq!(heard.try_recv(), Ok(Hint::Task { id: held.id, version: asked.version + 1 }));
        assert_eq!(store.collect(fence(&held), vec![]).await.unwrap(), [(1, InputResponse::Decline)]);
        let late = store.respond(&ann(), held.id, vec![(named("soon"), colour("blue"))]).await.unwrap();
        assert_eq!(open_keys(&late), ["late"]);
        assert!(late.input_until().unwrap() <= day, "no question waits for longer than a day");
        assert_eq!(world.texts(EVENTS).await.last().unwrap(), "mcp.task.input_answered");
        assert_eq!(world.texts("SELECT CAST(count(*) AS text) FROM audit").await, ["4"]);
    }

    async fn more_questions_than_fit_a_batch_lapse_on_two_replicas_at_once(world) {
        let stores = [world.store_with(|config| config.max_open = 0).await, world.store_with(|config| config.max_open = 0).await];
        for _ in 0..123 {
            let held = running(&stores[0], &ann()).await;
            stores[0].request_input(fence(&held), vec![form("a", "Which?"), form("b", "Which?")], MINUTE).await.unwrap();
        }
        stores[0].advance_clock(2 * MINUTE).await.unwrap();
        let (one, two) = tokio::join!(stores[0].lapse(), stores[1].lapse());
        assert_eq!(one.unwrap() + two.unwrap(), 123);
        assert_eq!(world.texts("SELECT CAST(count(*) AS text) FROM answers").await, ["246"]);
        let audited = "SELECT CAST(count(*) AS text) FROM audit WHERE event = 'mcp.task.input_answered'";
        assert_eq!(world.texts(audited).await, ["123"]);
    }

    async fn a_heartbeat_says_that_answers_wait_until_they_have_arrived(world) {
        let store = world.store().await;
        let (one, two) = (asking(&store, &ann(), &["k"]).await, asking(&store, &ann(), &["k"]).await);
        let beat = || vec![(one.id, 1), (two.id, 1)];
        assert_eq!(store.heartbeat(&worker("w"), beat()).await.unwrap(), []);
        store.respond(&ann(), two.id, vec![(named("k"), colour("blue"))]).await.unwrap();
        for store in [&store, &store, &world.store().await] {
            assert_eq!(store.heartbeat(&worker("w"), beat()).await.unwrap(), [Directive::Answered(two.id)]);
            store.collect(fence(&two), vec![]).await.unwrap();
        }
        store.collect(fence(&two), vec![1]).await.unwrap();
        assert_eq!(store.heartbeat(&worker("w"), beat()).await.unwrap(), []);
        assert_eq!(store.heartbeat(&worker("v"), beat()).await.unwrap(), [one.id, two.id].map(Directive::Stop));
    }

    async fn an_attached_worker_is_told_of_answers_at_once_wherever_they_were_given(world) {
        let (here, there) = (world.store().await, world.store().await);
        let mut directives = here.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
        for responder in [&here, &there] {
            let task = asking(&here, &ann(), &["a", "b"]).await;
            for key in ["a", "b"] {
                responder.respond(&ann(), task.id, vec![(named(key), colour("blue"))]).await.unwrap();
                let told = tokio::time::timeout(SOON, directives.next()).await.unwrap();
                assert_eq!(told, Some(Directive::Answered(task.id)));
            }
            // Nothing new is nothing to tell.
            here.report(fence(&task), Report { status_message: Some("m".into()), progress: None }).await.unwrap();
            responder.respond(&ann(), task.id, vec![(named("a"), colour("red"))]).await.unwrap();
            assert_eq!(directives.next().now_or_never(), None);
        }
        // What lapses is an answer too.
        let held = running(&here, &ann()).await;
        here.request_input(fence(&held), vec![form("k", "Which?")], MINUTE).await.unwrap();
        here.advance_clock(2 * MINUTE).await.unwrap();
        assert_eq!(there.lapse().await.unwrap(), 1);
        assert_eq!(tokio::time::timeout(SOON, directives.next()).await.unwrap(), Some(Directive::Answered(held.id)));
    }

    async fn a_page_and_a_collection_carry_a_bounded_number_of_bytes_but_always_something(world) {
        let store = world.store().await;
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let held = running(&store, &ann()).await;
            let padding = " ".repeat(60 * 1024);
            let schema = format!("{padding}{{\"type\":\"object\",\"properties\":{{\"colour\":{{\"type\":\"string\"}}}}}}");
            let question = Question::Form { message: "?".into(), schema: schema.into() };
            let requests = (0..20).map(|at| InputRequest { key: at.to_string(), question: question.clone() }).collect();
            tasks.push(store.request_input(fence(&held), requests, HOUR).await.unwrap());
        }
        let page = store.list(&ann(), None, 50).await.unwrap();
        assert_eq!((page.tasks, page.more), (vec![tasks[2].clone()], true));
        let answers = (1..=20).map(|nth| (InputKey::Nth(nth), colour(&"b".repeat(250 * 1024)))).collect();
        store.respond(&ann(), tasks[0].id, answers).await.unwrap();
        let mut have = Vec::new();
        loop {
            let kept = store.collect(fence(&tasks[0]), have.clone()).await.unwrap();
            if kept.is_empty() {
                break;
            }
            assert!(kept.len() <= 8);
            have = kept.iter().map(|(nth, _)| *nth).collect();
            assert!(kept.iter().all(|(_, answer)| *answer == colour(&"b".repeat(250 * 1024))));
        }
        assert_eq!(have.last(), Some(&20));
    }

    async fn a_call_that_has_begun_is_created_running(world) {
        let store = world.store().await;
        let _attached = store.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
        let mut directives = store.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
        let mut heard = world.bus.subscribe();
        let new = born(&ann(), &worker("w"), "run");
        let task = store.create(new.clone()).await.unwrap();
        let Phase::Running(lease) = &task.phase else { panic!("{task:?}") };
        assert_eq!((&lease.worker, &lease.token), (&worker("w"), &LeaseToken("run".into())));
        assert_eq!((lease.until, task.version, task.attempt), (task.created_at.plus(LEASE), 1, 1));
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), task);
        assert_eq!(world.store().await.create(new.clone()).await.unwrap(), task, "the same create");
        assert_eq!(world.texts(EVENTS).await, ["mcp.task.created"]);
        for (name, token) in [("v", "x"), ("w", "y")] {
            assert_eq!(store.claim(wish(&worker(name), token, 9)).await.unwrap(), []);
        }
        assert_eq!(heard.try_recv().ok(), None, "nobody is to look for it");
        // Another call of that worker cannot take its place.
        assert!(matches!(store.create(born(&ann(), &worker("w"), "run")).await, Err(Error::Fault(_))));
        assert!(matches!(store.create(born(&ann(), &worker("w"), "\0")).await, Err(Error::Fault(_))));

        let fenced = Fence { token: LeaseToken("other".into()), ..fence(&task) };
        assert_eq!(refusal(store.report(fenced, Report::default()).await), Refusal::Fenced);
        let asked = store.request_input(fence(&task), vec![form("k", "Which?")], HOUR).await.unwrap();
        assert_eq!(asked.version, 2);
        store.respond(&ann(), task.id, vec![(named("k"), colour("blue"))]).await.unwrap();
        assert_eq!(tokio::time::timeout(SOON, directives.next()).await.unwrap(), Some(Directive::Answered(task.id)));
        let ended = store.complete(fence(&task), done("{}")).await.unwrap();
        assert_eq!(store.create(new).await.unwrap(), ended);

        let task = store.create(born(&ann(), &worker("w"), "cancelled")).await.unwrap();
        store.cancel(&ann(), task.id).await.unwrap();
        assert_eq!(tokio::time::timeout(SOON, directives.next()).await.unwrap(), Some(Directive::Stop(task.id)));
    }

    async fn a_task_that_was_born_running_is_counted_and_interrupted_like_any_other(world) {
        let store = world.store_with(|config| config.max_open = 2).await;
        let (one, two) = (born(&ann(), &worker("w"), "one"), born(&ann(), &worker("w"), "two"));
        let (one, two) = tokio::join!(store.create(one), store.create(two));
        let (one, two) = (one.unwrap(), two.unwrap());
        let full = Refusal::TaskLimit { scope: LimitScope::Caller, limit: 2 };
        assert_eq!(refusal(store.create(born(&ann(), &worker("w"), "three")).await), full);
        store.interrupt().await.unwrap();
        store.advance_clock(LEASE - MINUTE).await.unwrap();
        store.interrupt().await.unwrap();
        assert_eq!(store.heartbeat(&worker("w"), vec![(one.id, 1)]).await.unwrap(), []);
        store.advance_clock(2 * MINUTE).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 1);
        let lost = Some(Ending::Interrupted(Interruption::WorkerLost));
        assert_eq!(store.get(&ann(), two.id).await.unwrap().ending(), lost);
        // Its worker comes back as another process.
        let new = WorkerId { incarnation: "2".into(), ..worker("w") };
        let _attached = store.attach(worker_info(&new, &["echo"])).await.unwrap();
        assert_eq!(store.get(&ann(), one.id).await.unwrap().ending(), lost);
    }

    async fn one_stream_carries_the_questions_of_a_task(world) {
        let (store, other) = (world.store().await, world.store().await);
        let task = store.create(new_task(&ann())).await.unwrap();
        let carry = async |store: &TaskStore, stream: &str, lease| store.carry(&ann(), task.id, stream, None, lease).await.unwrap();
        assert!(carry(&store, "a", MINUTE).await);
        assert!(!carry(&other, "b", MINUTE).await);
        assert!(carry(&other, "a", Duration::from_secs(1)).await, "it says so again; its time is no shorter for that");
        store.advance_clock(MINUTE / 2).await.unwrap();
        assert!(!carry(&store, "b", MINUTE).await);
        // Letting go is not for others to do.
        assert!(carry(&store, "b", Duration::ZERO).await);
        assert!(!carry(&store, "b", MINUTE).await);
        store.advance_clock(MINUTE).await.unwrap();
        assert!(carry(&store, "b", MINUTE).await, "its time was over");
        assert!(!carry(&store, "a", MINUTE).await);
        for _ in 0..2 {
            assert!(carry(&other, "b", Duration::ZERO).await);
        }
        assert!(carry(&store, "a", Duration::MAX).await);
        store.advance_clock(HOUR / 2).await.unwrap();
        assert!(carry(&store, "b", MINUTE).await, "nobody carries for ever");

        assert_eq!(refusal(store.carry(&agent("acme", "bob"), task.id, "b", None, MINUTE).await), Refusal::NotFound);
        assert_eq!(refusal(store.carry(&ann(), id(), "b", None, MINUTE).await), Refusal::NotFound);
        assert!(matches!(store.carry(&ann(), task.id, "\0", None, MINUTE).await, Err(Error::Fault(_))));
        store.cancel(&ann(), task.id).await.unwrap();
        assert!(!carry(&store, "b", MINUTE).await, "an ended task asks nothing");
        assert!(carry(&store, "b", Duration::ZERO).await);
        assert_eq!(world.texts("SELECT stream FROM carriers").await, NONE);

        let task = store.create(new_task(&ann())).await.unwrap();
        assert!(store.carry(&ann(), task.id, "a", None, MINUTE).await.unwrap());
        store.advance_clock(2 * MINUTE).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT stream FROM carriers").await, NONE);
    }

    async fn a_stream_that_was_opened_since_takes_the_questions_over_and_no_two_carry_at_once(world) {
        let (store, other) = (world.store().await, world.store().await);
        let task = store.create(new_task(&ann())).await.unwrap();
        // How long ago the streams were opened that wait for the result; the others are of sessions.
        let carry = async |store: &TaskStore, stream: &str, age: Option<u64>| {
            store.carry(&ann(), task.id, stream, age.map(Duration::from_secs), MINUTE).await.unwrap()
        };
        let second = Duration::from_secs(1);
        assert!(carry(&store, "session", None).await);
        assert!(!carry(&other, "another session", None).await);
        assert!(carry(&store, "session", None).await, "nothing to give way to");
        // Any stream that waits for the result comes before those of sessions.
        assert!(!carry(&other, "a", Some(100)).await, "not before the other one knows");
        assert!(!carry(&store, "session", None).await, "it gives way");
        assert!(!carry(&store, "session", None).await, "what is free is for the heir");
        assert!(!carry(&store, "another session", None).await);
        assert!(carry(&other, "a", Some(100)).await);
        store.advance_clock(second).await.unwrap();
        // Who was there before stays where it is.
        assert!(!carry(&store, "older", Some(50)).await);
        assert!(carry(&other, "a", Some(101)).await);
        // Of several newer ones, the newest.
        assert!(!carry(&store, "c", Some(0)).await);
        store.advance_clock(second).await.unwrap();
        assert!(!carry(&store, "d", Some(0)).await);
        assert!(!carry(&store, "c", Some(1)).await);
        assert!(!carry(&other, "a", Some(102)).await);
        for (stream, age) in [("c", Some(1)), ("a", Some(102)), ("older", Some(51)), ("session", None)] {
            assert!(!carry(&store, stream, age).await, "{stream}");
        }
        assert!(carry(&store, "d", Some(0)).await);
        store.advance_clock(second).await.unwrap();
        assert!(!carry(&store, "c", Some(2)).await, "none goes back and forth");
        assert!(carry(&store, "d", Some(1)).await);
        // An heir that is gone is waited for no longer than it asked for, or has said so.
        assert!(!carry(&other, "e", Some(0)).await);
        assert!(store.carry(&ann(), task.id, "e", None, Duration::ZERO).await.unwrap());
        assert!(carry(&store, "d", Some(1)).await);
        assert!(!carry(&other, "f", Some(0)).await);
        assert!(!carry(&store, "d", Some(1)).await);
        store.advance_clock(2 * MINUTE).await.unwrap();
        assert!(carry(&store, "d", Some(121)).await);
        // What is let go goes to the heir.
        assert!(!carry(&other, "g", Some(0)).await);
        assert!(store.carry(&ann(), task.id, "d", None, Duration::ZERO).await.unwrap());
        assert!(!carry(&store, "c", Some(123)).await);
        assert!(carry(&other, "g", Some(0)).await);
        assert!(store.carry(&ann(), task.id, "g", None, Duration::ZERO).await.unwrap());
        assert_eq!(world.texts("SELECT stream FROM carriers").await, NONE);
    }

    async fn of_many_streams_at_once_one_carries(world) {
        let stores = [world.store().await, world.store().await];
        for _ in 0..10 {
            let task: TaskId = stores[0].create(new_task(&ann())).await.unwrap().id;
            let wishes = (0..6).map(|at| {
                let store = stores[at % 2].clone();
                spawn(async move { store.carry(&ann(), task, &at.to_string(), Some(Duration::ZERO), MINUTE).await.unwrap() })
            });
            let granted = futures::future::join_all(wishes).await.into_iter().filter(|granted| *granted.as_ref().unwrap());
            assert_eq!(granted.count(), 1);
        }
    }

    async fn no_answer_is_found_anywhere_but_sealed(world) {
        logs::keep();
        let mut world = world;
        let store = world.store().await;
        let (asked, answered) = ("c4n4ry-question-7f3a", "c4n4ry-answer-7f3a");
        let held = running(&store, &ann()).await;
        store.request_input(fence(&held), vec![form("a", asked), form("b", asked)], HOUR).await.unwrap();
        let odd = InputResponse::Accept(Some(format!("{{\"{answered}\":1}}").into()));
        store.respond(&ann(), held.id, vec![(named("a"), colour(answered)), (named("b"), odd)]).await.unwrap();
        assert_eq!(world.texts(ANSWERS).await.len(), 2);
        let finds = |dump: &[u8], what: &str| {
            let hex: String = what.bytes().map(|byte| format!("{byte:02x}")).collect();
            [what.as_bytes(), hex.as_bytes()].iter().any(|what| dump.windows(what.len()).any(|window| window == *what))
        };
        let dump = world.dump().await;
        assert!(finds(&dump, &held.id.to_string()) && finds(&dump, "mcp.task.input_answered"), "the dump is one");
        assert!(!finds(&dump, answered));

        // Nor in a log, not even of a failure.
        world.keyring = std::sync::Arc::new(ArcSwap::from_pointee(Keyring::new(&[9; KEY_BYTES], &[])));
        let without_its_key = world.store().await.collect(fence(&held), vec![]).await.unwrap();
        assert_eq!(without_its_key, [(1, InputResponse::Decline), (2, InputResponse::Decline)], "the run goes on");
        let mut report = store.collect(fence(&held), vec![]).await.unwrap();
        assert_eq!(report.remove(0), (1, colour(answered)));
        store.collect(fence(&held), vec![1, 2]).await.unwrap();
        store.cancel(&ann(), held.id).await.unwrap();
        let log = logs::kept();
        assert!(log.contains("an answer cannot be opened") && log.contains(&held.id.to_string()), "the log is one");
        assert!(!log.contains(answered) && !log.contains(asked));
        let audit = "SELECT event || tool || owner || tenant || coalesce(reason, '') FROM audit";
        assert!(!world.texts(audit).await.concat().contains("c4n4ry"));
        assert!(!finds(&world.dump().await, answered));
    }
}
