//! A wrong config is refused, by the name of what is wrong.

use std::time::Duration;

use longhaul_tests::processes::{Process, Site, binary, free_address};
use longhaul_tests::services;

/// Long enough for a database that answers.
const WITHIN: Duration = Duration::from_secs(20);
const USAGE: i32 = 64;

/// Runs the binary to its end; gives its exit code, and what it wrote to stderr and to stdout.
async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let variables: Vec<_> = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut process = Process::start("longhaul", &binary(), arguments, &variables, folder.path());
    let code = process.code(WITHIN).await;
    (code, process.log(), process.output())
}

/// Panics unless it ends so, and says why.
async fn assert_refused(arguments: &[&str], variables: &[(&str, &str)], code: i32, words: &[&str]) {
    let (ended, log, _) = run(arguments, variables).await;
    assert_eq!(ended, code, "{arguments:?} {variables:?}: {log}");
    for word in words {
        assert!(log.contains(word), "{arguments:?} {variables:?}: no {word:?} in {log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn an_unknown_key_is_refused_by_its_name_wherever_it_comes_from() {
    assert_refused(&["gateway"], &[("LONGHAUL_MCP_TASK_MAX_OPNE", "1")], USAGE, &["mcp_task_max_opne"]).await;
    assert_refused(&["runner", "--set", "runner.slotz=1"], &[], USAGE, &["slotz"]).await;
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(file.path(), "[taskstore]\nlisen = \"127.0.0.1:1\"\n").unwrap();
    let path = file.path().to_str().unwrap();
    assert_refused(&["taskstore"], &[("LONGHAUL_CONFIG", path)], USAGE, &["lisen"]).await;
    assert_refused(&["taskstore", "--config", path], &[], USAGE, &["lisen"]).await;
    assert_refused(&["gateway", "--config", "/no/such/file"], &[], USAGE, &["/no/such/file"]).await;
    assert_refused(&["gatway"], &[], USAGE, &["gatway"]).await;
}

#[tokio::test]
async fn a_wrong_value_is_refused_by_its_keys_name() {
    for (key, value) in [
        ("task_heartbeat_ms", "0"),
        ("mcp_task_max_open", "many"),
        ("gateway.listen", "nowhere"),
        ("log_format", "xml"),
        ("log", "a=b=c"),
        ("redis_url", "http://x"),
    ] {
        let set = format!("{key}={value}");
        let token = ("LONGHAUL_SERVICE_TOKEN", "a-token-for-the-tests");
        let management = ("LONGHAUL_MANAGEMENT_LISTEN", "127.0.0.1:0");
        let listen = ("LONGHAUL_RUNNER__WORKER_LISTEN", "127.0.0.1:0");
        assert_refused(&["runner", "--set", &set], &[token, management, listen], USAGE, &[key]).await;
    }
}

#[tokio::test]
async fn a_missing_secret_is_named_with_what_to_do() {
    let management = ("LONGHAUL_MANAGEMENT_LISTEN", "127.0.0.1:0");
    let token = ("LONGHAUL_SERVICE_TOKEN", "a-token-for-the-tests");
    assert_refused(&["taskstore"], &[management, token], USAGE, &["taskstore.database_url", "postgres://"]).await;
    let database = ("LONGHAUL_TASKSTORE__DATABASE_URL", "postgres://127.0.0.1:1/none");
    assert_refused(&["taskstore"], &[management, database], USAGE, &["service_token_file", "16 characters"]).await;
    let short = ("LONGHAUL_SERVICE_TOKEN", "short");
    assert_refused(&["taskstore"], &[management, database, short], USAGE, &["service_token", "16 characters"]).await;
    assert_refused(&["taskstore"], &[management, database, token], USAGE, &["seal_keys_file", "openssl rand"]).await;
    assert_refused(&["gateway"], &[management, token], USAGE, &["seal_keys_file", "openssl rand"]).await;
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let credential = "[[gateway.credentials]]\nsha256 = \"d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47\"\ntenant = \"a\"\nagent = \"b\"\n";
    std::fs::write(file.path(), credential).unwrap();
    let config = ("LONGHAUL_CONFIG", file.path().to_str().unwrap());
    assert_refused(&["gateway"], &[management, token, config], USAGE, &["seal_keys_file", "openssl rand"]).await;
    let missing = ("LONGHAUL_SERVICE_TOKEN_FILE", "/no/such/file");
    let listen = ("LONGHAUL_RUNNER__WORKER_LISTEN", "127.0.0.1:0");
    assert_refused(&["runner"], &[management, listen, missing], USAGE, &["service_token_file", "/no/such/file"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_ready_for_service_is_refused_with_what_to_do() {
    let mut site = Site::shared().await;
    let process = site.spawn("taskstore-1", &[]);
    assert_eq!(process.code(WITHIN).await, 1, "{}", process.log());
    assert!(process.log().contains("longhaul migrate"), "{}", process.log());

    site.migrate().await;
    site.migrate().await;
    site.start("taskstore-1").await;
    site.kill("taskstore-1");

    // The shared server does not wait for the disk.
    site.unset("TASKSTORE__ALLOW_UNSAFE_DURABILITY");
    let process = site.spawn("taskstore-2", &[]);
    assert_eq!(process.code(WITHIN).await, 1, "{}", process.log());
    for word in ["synchronous_commit", "would lose", "allow_unsafe_durability"] {
        assert!(process.log().contains(word), "{}", process.log());
    }
    let nowhere = format!("postgres://127.0.0.1:{}/none", free_address().port());
    let process = site.spawn("taskstore-3", &[("TASKSTORE__DATABASE_URL", &nowhere)]);
    assert_eq!(process.code(WITHIN).await, 1, "{}", process.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_named_by_its_key() {
    let mut site = Site::new(&services::database().await, None).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (role, key, name) in [
        ("gateway-1", "GATEWAY__LISTEN", "gateway.listen"),
        ("taskstore-1", "TASKSTORE__LISTEN", "taskstore.listen"),
        ("runner-1", "RUNNER__WORKER_LISTEN", "runner.worker_listen"),
        ("runner-2", "MANAGEMENT_LISTEN", "management_listen"),
    ] {
        let process = site.spawn(role, &[(key, &address)]);
        assert_eq!(process.code(WITHIN).await, 1, "{}", process.log());
        assert!(process.log().contains(name), "{name}: {}", process.log());
        assert!(process.log().contains(&address), "{name}: {}", process.log());
    }
}

#[tokio::test]
async fn config_print_shows_the_effective_config_and_no_secrets() {
    let canary = "canary-of-16-characters";
    let url = format!("postgres://user:{canary}@127.0.0.1/x");
    let redis = format!("redis://:{canary}@127.0.0.1/");
    let variables = [
        ("LONGHAUL_SERVICE_TOKEN", canary),
        ("LONGHAUL_TASKSTORE__DATABASE_URL", &url),
        ("LONGHAUL_REDIS_URL", &redis),
        ("LONGHAUL_MCP_TASK_MAX_OPEN", "7"),
    ];
    let (code, log, output) = run(&["config", "print"], &variables).await;
    assert_eq!(code, 0, "{log}");
    assert!(!output.contains(canary) && !log.contains(canary), "{output}{log}");
    assert!(output.contains("mcp_task_max_open = 7"), "{output}");
    assert!(output.contains("service_token = \"[hidden]\""), "{output}");
    // What is missing for one role does not hinder another.
    for (roles, key) in
        [("gateway, taskstore", "seal_keys_file is needed"), ("runner", "runner.worker_advertise_url is needed")]
    {
        let told = log.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("no {key}: {log}"));
        assert!(told.contains(&format!("does not start {roles}: ")), "{told}");
    }
    assert!(!log.contains("database_url"), "{log}");
}
