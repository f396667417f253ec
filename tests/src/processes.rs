//! The real binary as processes, on free ports of 127.0.0.1, and servers of a test's own to be killed.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{Client, PATIENCE, http};
use crate::database::Database;
use crate::services;

/// How often a process or a port is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Below the ports that the kernel gives to outgoing connections: a port stays free while its process is dead.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
/// What the roles of a test show one another.
const SERVICE_TOKEN: &str = "a-service-token-for-the-tests";
/// The one key of a test's gateways: base64 of 32 bytes.
const SEAL_KEY: &str = "bG9uZ2hhdWwtdGVzdHMtc2VhbC1rZXktMzItYnl0ZXM=";

/// The binary under test.
pub fn binary() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    // target/debug/deps/faults-…
    let path = here.parent().unwrap().parent().unwrap().join("longhaul");
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --all-targets` first", path.display());
    path
}

/// An address that nobody listens on.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..PORTS.len() {
        let start = (std::process::id() % PORTS.len() as u32) as u16;
        let offset = (usize::from(start) + usize::from(NEXT.fetch_add(1, Ordering::Relaxed))) % PORTS.len();
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + offset as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free");
}

/// A process that ends with this one: killed and collected when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts a program with nothing of this process's environment but where programs are. What it prints is kept in
    /// `folder`, beside that of its former selves of the same name.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: &[&str],
        variables: &[(String, String)],
        folder: &Path,
    ) -> Self {
        let log = |kind: &str| {
            let file = folder.join(format!("{name}.{kind}"));
            std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap()
        };
        #[expect(clippy::disallowed_methods, reason = "where programs are")]
        let path = std::env::var("PATH").unwrap();
        // It also ends if this process is killed and can drop nothing.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .envs(variables.iter().cloned())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log("out"))
            .stderr(log("err"))
            .spawn()
            .unwrap();
        Self { name: name.to_owned(), child, folder: folder.to_owned() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal: `TERM`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        assert!(signal(name, &[self.pid()]), "{} is gone", self.name);
    }

    /// `kill -9`; it is gone when this returns.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it ends by itself; gives its exit code.
    pub async fn code(&mut self, within: Duration) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status.code().unwrap_or_else(|| -status.signal().unwrap());
            }
            assert!(begun.elapsed() < within, "{} still runs after {within:?}: {}", self.name, self.log());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What it and its former selves wrote to stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join(format!("{}.err", self.name))).unwrap_or_default()
    }

    /// What it and its former selves wrote to stdout.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join(format!("{}.out", self.name))).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("--- {} ---\n{}", self.name, self.log());
        }
    }
}

/// Sends a signal to processes that this test has started; false if one of them is gone.
fn signal(signal: &str, pids: &[u32]) -> bool {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -{signal} {}", pids.join(" "));
    Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap().success()
}

/// The roles of one installation. A role's name is its kind and a number, as `gateway-1`; it keeps its addresses when it
/// is started again.
#[derive(Debug)]
pub struct Site {
    // Before their folder: a failed test shows what they wrote.
    roles: HashMap<String, Process>,
    variables: Vec<(String, String)>,
    addresses: HashMap<String, [SocketAddr; 2]>,
    folder: TempDir,
}

impl Site {
    /// An installation on a new database of the shared Postgres server and on the shared Redis.
    pub async fn shared() -> Self {
        let (url, prefix) = services::redis();
        let mut site = Self::new(&services::empty_database().await, Some(&url)).await;
        site.set("REDIS_PREFIX", prefix);
        site
    }

    /// An installation on a database that has no schema yet.
    pub async fn new(database: &str, redis: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("seal-keys"), SEAL_KEY).unwrap();
        std::fs::write(folder.path().join("service-token"), SERVICE_TOKEN).unwrap();
        let mut credentials = String::new();
        for credential in crate::world::credentials() {
            let (sha256, tenant, agent) = (credential.sha256, credential.tenant, credential.agent.unwrap());
            credentials +=
                &format!("[[gateway.credentials]]\nsha256 = {sha256:?}\ntenant = {tenant:?}\nagent = {agent:?}\n");
        }
        std::fs::write(folder.path().join("longhaul.toml"), credentials).unwrap();
        let mut site = Self { variables: Vec::new(), addresses: HashMap::new(), roles: HashMap::new(), folder };
        let file = |name: &str| site.folder.path().join(name).display().to_string();
        let (config, keys, token) = (file("longhaul.toml"), file("seal-keys"), file("service-token"));
        site.set("CONFIG", config);
        site.set("SEAL_KEYS_FILE", keys);
        site.set("SERVICE_TOKEN_FILE", token);
        site.set("TASKSTORE__DATABASE_URL", database);
        site.set("TASKSTORE__ALLOW_UNSAFE_DURABILITY", "true");
        site.set("TASKSTORE__DATABASE_MAX_CONNECTIONS", "4");
        site.set("RUNNER__DEMO_TOOLS", "true");
        site.set("MCP_TASK_MAX_OPEN", "0");
        // Everything about liveness is ten times as fast.
        site.set("TASK_HEARTBEAT_MS", "1000");
        site.set("DRAIN_NOTICE_MS", "0");
        if let Some(redis) = redis {
            site.set("REDIS_URL", redis);
        }
        let stores = [site.address("taskstore-1"), site.address("taskstore-2")];
        site.set("TASKSTORE_URLS", format!("[http://{}, http://{}]", stores[0], stores[1]));
        site
    }

    /// Sets a config key for the roles that are started from now on.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        let name = format!("LONGHAUL_{key}");
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.into()));
    }

    /// Takes a key back.
    pub fn unset(&mut self, key: &str) {
        let name = format!("LONGHAUL_{key}");
        self.variables.retain(|(known, _)| *known != name);
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn addresses(&mut self, role: &str) -> [SocketAddr; 2] {
        *self.addresses.entry(role.to_owned()).or_insert_with(|| [free_address(), free_address()])
    }

    /// Where a role listens.
    pub fn address(&mut self, role: &str) -> SocketAddr {
        self.addresses(role)[0]
    }

    /// The URL of a role's probes and metrics.
    pub fn management(&mut self, role: &str, path: &str) -> String {
        format!("http://{}{path}", self.addresses(role)[1])
    }

    /// The URL of a gateway.
    pub fn url(&mut self, gateway: &str) -> String {
        format!("http://{}/mcp", self.address(gateway))
    }

    /// Starts a role, ready or not. `more` are keys for it alone.
    pub fn spawn(&mut self, role: &str, more: &[(&str, &str)]) -> &mut Process {
        let [listen, management] = self.addresses(role);
        let kind = role.split('-').next().unwrap();
        let mut variables = self.variables.clone();
        let mut set = |key: &str, value: &str| variables.push((format!("LONGHAUL_{key}"), value.to_owned()));
        set("MANAGEMENT_LISTEN", &management.to_string());
        match kind {
            "gateway" => set("GATEWAY__LISTEN", &listen.to_string()),
            "taskstore" => set("TASKSTORE__LISTEN", &listen.to_string()),
            "runner" => set("RUNNER__WORKER_LISTEN", &listen.to_string()),
            _ => {}
        }
        for (key, value) in more {
            set(key, value);
        }
        let process = Process::start(role, &binary(), &[kind], &variables, self.folder.path());
        self.roles.insert(role.to_owned(), process);
        self.role(role)
    }

    /// Starts a role and waits until it is ready.
    pub async fn start(&mut self, role: &str) {
        self.start_with(role, &[]).await;
    }

    /// Starts a role with keys of its own and waits until it is ready.
    pub async fn start_with(&mut self, role: &str, more: &[(&str, &str)]) {
        self.spawn(role, more);
        self.ready(role).await;
    }

    /// Waits until a role is ready; a gateway, until it also offers tools.
    pub async fn ready(&mut self, role: &str) {
        let url = self.management(role, "/readyz");
        let http = http();
        let begun = Instant::now();
        while !http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
            let process = self.role(role);
            if let Some(status) = process.ended() {
                panic!("{role} has ended: {status}");
            }
            assert!(begun.elapsed() < PATIENCE, "{role} is not ready");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Runs the binary to its end, which must be well; gives what it printed.
    pub async fn run(&mut self, arguments: &[&str]) -> String {
        let (code, output, log) = self.attempt(arguments).await;
        assert_eq!(code, 0, "{log}");
        output
    }

    /// Runs the binary to its end; gives its exit code, and what it wrote to stdout and to stderr.
    pub async fn attempt(&mut self, arguments: &[&str]) -> (i32, String, String) {
        let folder = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut process = Process::start(arguments[0], &binary(), arguments, &self.variables, folder.path());
        let code = process.code(PATIENCE).await;
        (code, process.output(), process.log())
    }

    /// A connection of the test's own to the database.
    pub async fn database(&self) -> Database {
        let url = self.variables.iter().find(|(name, _)| name == "LONGHAUL_TASKSTORE__DATABASE_URL");
        Database::connect(&url.unwrap().1).await
    }

    /// Migrates the database.
    pub async fn migrate(&mut self) {
        self.run(&["migrate"]).await;
    }

    /// Migrates, starts roles, and waits until the gateways among them offer tools.
    pub async fn up(&mut self, roles: &[&str]) {
        self.migrate().await;
        for role in roles {
            self.spawn(role, &[]);
        }
        for role in roles {
            self.ready(role).await;
        }
        for role in roles.iter().filter(|role| role.starts_with("gateway")) {
            self.offering(role).await;
        }
    }

    /// Waits until a gateway offers tools.
    pub async fn offering(&mut self, gateway: &str) {
        let client = self.client(gateway).await;
        let begun = Instant::now();
        while client.ok("tools/list", serde_json::json!({})).await["tools"].as_array().unwrap().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "{gateway} offers no tools");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A role's process.
    pub fn role(&mut self, role: &str) -> &mut Process {
        self.roles.get_mut(role).unwrap()
    }

    /// `kill -9` a role.
    pub fn kill(&mut self, role: &str) {
        self.roles.remove(role).unwrap().kill();
    }

    /// `kill -9` every role, at once.
    pub fn kill_all(&mut self) {
        self.roles.retain(|_, role| role.ended().is_none());
        let pids: Vec<u32> = self.roles.values().map(Process::pid).collect();
        signal("KILL", &pids);
        self.roles.clear();
    }

    /// A client of alice's.
    pub async fn client(&mut self, gateway: &str) -> Client {
        Client::connect(&self.url(gateway), Some(crate::world::ALICE)).await
    }
}

/// A Redis server of a test's own.
#[derive(Debug)]
pub struct Redis {
    address: SocketAddr,
    process: Option<Process>,
    folder: TempDir,
}

impl Redis {
    /// One that does not run yet.
    pub fn absent() -> Self {
        Self { address: free_address(), process: None, folder: tempfile::tempdir().unwrap() }
    }

    /// One that runs.
    pub async fn started() -> Self {
        let mut redis = Self::absent();
        redis.start().await;
        redis
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Starts it, always at the same address.
    pub async fn start(&mut self) {
        let port = self.address.port().to_string();
        let arguments = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"];
        self.process = Some(Process::start("redis", Path::new("redis-server"), &arguments, &[], self.folder.path()));
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "Redis does not start");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        self.process.as_ref().unwrap().signal(name);
    }

    /// Runs a command; gives what it answered.
    pub fn command(&self, words: &[&str]) -> String {
        let port = self.address.port().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

/// A durable Postgres server of a test's own.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    url: String,
    pid: u32,
}

impl Postgres {
    /// Starts one, as durable as it comes.
    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("longhaul-postgres.").tempdir_in("/tmp").unwrap();
        let said = script(&["start", "--durable", &folder.path().display().to_string()]);
        Self { url: variable(&said, "LONGHAUL_TEST_POSTGRES"), pid: pid(&said), folder }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `kill -9` all its processes, at once.
    pub fn kill(&self) {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap();
        let mut pids: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        pids.push(self.pid);
        // None may be left to write to the files; a child that has just ended by itself is no failure.
        signal("KILL", &pids);
    }

    /// Starts it again, at the same address.
    pub fn again(&mut self) {
        self.pid = pid(&script(&["again", &self.folder.path().display().to_string()]));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let folder = self.folder.path().display().to_string();
        let _ = Command::new(services_script()).args(["stop", &folder]).output();
    }
}

fn services_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/services.sh")
}

fn script(arguments: &[&str]) -> String {
    let output = Command::new(services_script()).args(arguments).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "services.sh {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn variable(said: &str, name: &str) -> String {
    let lines = said.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    lines.into_iter().find(|(known, _)| *known == name).unwrap().1.to_owned()
}

fn pid(said: &str) -> u32 {
    variable(said, "LONGHAUL_TEST_POSTGRES_PID").parse().unwrap()
}
