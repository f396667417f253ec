//! The roles over TCP, as processes are: each with a certificate and tokens of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_cli::callers::callers;
use longhaul_cli::check::Role;
use longhaul_cli::compose::{Running, Site};
use longhaul_cli::config::Config;
use longhaul_cli::services::{ServiceTokensConfig, TlsConfig};
use longhaul_mcp::seal::Keyring;
use longhaul_rpc::Listener;
use longhaul_tests::certificates::Authority;
use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::world::{ALICE, credentials};
use longhaul_worker::Listening;
use secrecy::SecretString;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

fn file(folder: &Path, name: &str, text: &[u8]) -> Option<PathBuf> {
    std::fs::write(folder.join(name), text).unwrap();
    Some(folder.join(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_that_have_only_what_is_theirs_serve_calls_and_tasks() {
    let (authority, folder) = (Authority::new("ours"), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let listen = async || TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (store, worker, mcp) = (listen().await, listen().await, listen().await);
    let store_url = format!("https://{}", store.local_addr().unwrap());
    let advertise_url = format!("https://{}", worker.local_addr().unwrap());
    let url = format!("http://{}/mcp", mcp.local_addr().unwrap());
    let token = |name: &str| file(folder, name, format!("a-token-for-the-tests-of-{name}").as_bytes());
    let site = |role: Role, name: &str| {
        let certificate = authority.issue(&format!("spiffe://longhaul/{name}"));
        let is = |roles: &[Role]| roles.contains(&role);
        let mut config = Config {
            taskstore_urls: vec![store_url.clone()],
            tls: TlsConfig {
                cert_file: file(folder, &format!("{name}.crt"), &certificate.pem),
                key_file: file(folder, &format!("{name}.key"), &certificate.key),
                ca_file: file(folder, "ca.crt", &authority.pem),
            },
            service_tokens: ServiceTokensConfig {
                gateway_file: token("gateway").filter(|_| is(&[Role::Gateway, Role::Taskstore])),
                runner_file: token("runner").filter(|_| is(&[Role::Runner, Role::Taskstore])),
                admin_file: token("admin").filter(|_| is(&[Role::Taskstore])),
                calls_file: token("calls").filter(|_| is(&[Role::Gateway, Role::Runner])),
            },
            ..Config::default()
        };
        config.runner.demo_tools = true;
        config.gateway.credentials = credentials();
        Site::playing(Some(role), Arc::new(config)).unwrap()
    };
    let (drain, roles) = (CancellationToken::new(), TaskTracker::new());
    let run = |running: Running| roles.spawn(async move { running.await.unwrap() });
    let keyring = || Keyring::new(&[7; 32], &[]);

    let database = SecretString::from(format!("sqlite:{}", folder.join("longhaul.db").display()));
    let keeps = site(Role::Taskstore, "taskstore");
    let last = CancellationToken::new();
    let (_, running) = keeps.taskstore(&database, keyring(), Listener::Tcp(store), last.clone()).await.unwrap();
    run(running);
    let listening = Listening { listener: Listener::Tcp(worker), advertise_url };
    let (mut attached, running) = site(Role::Runner, "runner").runner(Vec::new(), listening, drain.clone()).unwrap();
    let worked = run(running);
    tokio::time::timeout(PATIENCE, attached.wait_for(|attached| *attached)).await.unwrap().unwrap();
    let speaks = site(Role::Gateway, "gateway");
    let auth = callers(&speaks.config).unwrap();
    let (status, running) = speaks.gateway(auth, keyring(), mcp, drain.clone()).unwrap();
    let spoke = run(running);
    tokio::time::timeout(PATIENCE, status.offering()).await.unwrap();

    let client = Client::connect(&url, Some(ALICE)).await;
    let called = client.ok("tools/call", json!({"name": "echo", "arguments": {"n": 1}})).await;
    assert_eq!(called["structuredContent"], json!({"n": 1}), "a call goes to the worker");
    let id = client.create("echo", json!({"n": 2})).await;
    assert_eq!(client.result(&id).await["result"]["structuredContent"], json!({"n": 2}), "a task comes to it");

    drain.cancel();
    for ended in [worked, spoke] {
        tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    }
    last.cancel();
    roles.close();
    tokio::time::timeout(PATIENCE, roles.wait()).await.unwrap();
}
