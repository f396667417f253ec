//! `longhaul dev`: one process, one folder.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::processes::{Process, binary, free_address};
use serde_json::json;

use crate::{LOOK, MARGIN, assert_counted, assert_interrupted, countdown, running};

fn spawn(name: &str, listen: SocketAddr, folder: &Path) -> Process {
    let listen = listen.to_string();
    let data = folder.join("data").display().to_string();
    Process::start(name, &binary(), &["dev", "--listen", &listen, "--data", &data], &[], folder)
}

/// Waits until it has said how to use it.
async fn up(process: &mut Process, banners: usize) {
    let begun = Instant::now();
    while process.output().matches("By hand").count() < banners {
        assert!(process.ended().is_none(), "{}", process.log());
        assert!(begun.elapsed() < PATIENCE, "{}", process.log());
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_outlive_the_process_and_a_running_one_is_interrupted_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut dev = spawn("dev", address, folder.path());
    up(&mut dev, 1).await;
    let client = Client::connect(&format!("http://{address}/mcp"), None).await;
    let done = countdown(&client, 0.1).await;
    assert_counted(&client.ask("tasks/result", json!({"taskId": done})).await);
    let held = countdown(&client, 600.0).await;
    running(&client, &held).await;

    dev.kill();
    let mut dev = spawn("dev", address, folder.path());
    up(&mut dev, 2).await;
    let back = Instant::now();
    assert_counted(&client.ask("tasks/result", json!({"taskId": done})).await);
    assert_interrupted(&client.ask("tasks/result", json!({"taskId": held})).await);
    assert!(back.elapsed() < MARGIN, "{:?}", back.elapsed());
    let listed = client.ok("tasks/list", json!({})).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 2);

    let next = countdown(&client, 600.0).await;
    running(&client, &next).await;
    dev.signal("TERM");
    assert_eq!(dev.code(Duration::from_secs(5) + MARGIN).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_listens_on_loopback_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = spawn("dev", SocketAddr::from(([0, 0, 0, 0], free_address().port())), folder.path());
    assert_eq!(dev.code(PATIENCE).await, 64);
    assert!(dev.log().contains("loopback"), "{}", dev.log());
    assert!(!folder.path().join("data").exists(), "it has touched nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut first = spawn("first", address, folder.path());
    up(&mut first, 1).await;
    let client = Client::connect(&format!("http://{address}/mcp"), None).await;
    let held = countdown(&client, 3.0).await;
    running(&client, &held).await;
    let mut second = spawn("second", free_address(), folder.path());
    assert_eq!(second.code(Duration::from_secs(10)).await, 1, "{}", second.log());
    assert!(second.log().contains("data"), "it names the folder: {}", second.log());
    assert_counted(&client.ask("tasks/result", json!({"taskId": held})).await);
}
