//! Tasks are listed.

use std::collections::HashSet;

use futures::future::join_all;
use longhaul_tests::client::Client;
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};

const MANY: usize = 120;

fn ids(page: &Value) -> Vec<String> {
    page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
}

/// All pages, each asked for at the next of `clients` in turn.
async fn pages(clients: &[Client; 2]) -> Vec<Value> {
    let mut pages: Vec<Value> = Vec::new();
    loop {
        let params = match pages.last() {
            Some(page) => json!({"cursor": page["nextCursor"]}),
            None => json!({}),
        };
        let page = clients[pages.len() % 2].ok("tasks/list", params).await;
        let is_last = page.get("nextCursor").is_none();
        pages.push(page);
        if is_last {
            return pages;
        }
    }
}

async fn many(clients: &[Client; 2]) -> HashSet<String> {
    let created = (0..MANY).map(|at| clients[at % 2].create("hold", json!({})));
    let created: HashSet<_> = join_all(created).await.into_iter().collect();
    assert_eq!(created.len(), MANY);
    created
}

async fn every_task_is_on_one_page_newest_first_and_new_ones_move_none(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_open = 0).await;
    let clients = world.clients(ALICE).await;
    let created = many(&clients).await;
    let all = pages(&clients).await;
    assert_eq!(all.iter().map(|page| ids(page).len()).collect::<Vec<_>>(), [50, 50, 20]);
    assert_eq!(all.iter().flat_map(ids).collect::<HashSet<_>>(), created);
    let moments: Vec<_> = all
        .iter()
        .flat_map(|page| page["tasks"].as_array().unwrap())
        .map(|task| task["createdAt"].as_str().unwrap())
        .collect();
    assert!(moments.is_sorted_by(|a, b| a >= b), "newest first");

    // Newer tasks come on the first page; what a cursor points to stays.
    let newer = clients[0].create("hold", json!({})).await;
    let again = clients[0].ok("tasks/list", json!({"cursor": all[0]["nextCursor"]})).await;
    assert_eq!(ids(&again), ids(&all[1]));
    let first = clients[1].ok("tasks/list", json!({})).await;
    assert_eq!(ids(&first)[0], newer);
    assert_eq!(ids(&first)[1..], ids(&all[0])[..49]);

    // Ended tasks stay, and the list says of each what get says.
    world.gate.open();
    let every: Vec<_> = created.into_iter().chain([newer]).collect();
    join_all(every.iter().map(|id| clients[0].result(id))).await;
    let listed: Vec<Value> =
        pages(&clients).await.iter().flat_map(|page| page["tasks"].as_array().unwrap().clone()).collect();
    assert_eq!(listed.len(), MANY + 1);
    for task in &listed[..20] {
        assert_eq!(*task, clients[1].ok("tasks/get", json!({"taskId": task["taskId"]})).await);
        assert_eq!(task["status"], "completed");
    }
    assert_eq!(world.client(BOB).await.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    world.stop().await;
}

async fn tasks_of_one_moment_are_each_on_one_page(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_open = 0).await;
    let clients = world.clients(ALICE).await;
    let created = many(&clients).await;
    let mut database = world.database().await;
    database
        .execute("UPDATE tasks SET created_at = (SELECT min(created_at) FROM tasks), updated_at = created_at")
        .await;
    let all = pages(&clients).await;
    assert_eq!(all.len(), 3);
    let listed: Vec<_> = all.iter().flat_map(ids).collect();
    assert_eq!(listed.len(), MANY);
    assert_eq!(listed.iter().cloned().collect::<HashSet<_>>(), created);
    let again: Vec<_> = pages(&clients).await.iter().flat_map(ids).collect();
    assert_eq!(again, listed, "the order is always the same");
    world.stop().await;
}

async fn what_is_no_cursor_of_this_list_is_refused(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.mcp_task_max_open = 0;
        config.gateway.tools_page = 2;
    })
    .await;
    let clients = world.clients(ALICE).await;
    let [alice, _] = &clients;
    join_all((0..51).map(|_| alice.create("hold", json!({})))).await;
    let cursor = alice.ok("tasks/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
    let of_tools = alice.ok("tools/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
    let mut altered = cursor.clone().into_bytes();
    altered[20] ^= 1;
    let altered = String::from_utf8(altered).unwrap();
    for wrong in [
        json!(""),
        json!("50"),
        json!(altered),
        json!(cursor[1..]),
        json!(format!("{cursor}A")),
        json!(of_tools),
        json!(alice.session()),
        json!(7),
        json!(null),
        json!([cursor]),
    ] {
        let error = alice.error("tasks/list", json!({"cursor": wrong})).await;
        assert_eq!(error, json!({"code": -32602, "message": "Invalid cursor"}), "{wrong}");
    }
    assert_eq!(alice.error("tools/list", json!({"cursor": cursor})).await["code"], -32602);
    let error = world.client(BOB).await.error("tasks/list", json!({"cursor": cursor})).await;
    assert_eq!(error, json!({"code": -32602, "message": "Invalid cursor"}), "somebody else's");
    assert_eq!(
        ids(&clients[1].ok("tasks/list", json!({"cursor": cursor})).await).len(),
        1,
        "in another session, at the other gateway"
    );
    world.stop().await;
}

crate::both!(
    every_task_is_on_one_page_newest_first_and_new_ones_move_none,
    tasks_of_one_moment_are_each_on_one_page,
    what_is_no_cursor_of_this_list_is_refused,
);
