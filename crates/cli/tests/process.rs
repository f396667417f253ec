//! The binary as a process.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const ODD: &[u8] = b"canary\xff";
/// 32 bytes of zeros.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

fn longhaul(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(arguments).env_clear();
    command
}

fn words(output: &Output) -> String {
    String::from_utf8([&*output.stdout, &*output.stderr].concat()).unwrap()
}

/// Ends with the test, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first line with `words` in what a process says; panics if it ends without.
fn line_with(says: impl Read, words: &str) -> String {
    let mut lines = BufReader::new(says).lines().map(Result::unwrap);
    lines.find(|line| line.contains(words)).expect(words)
}

#[test]
fn an_upstream_server_that_is_missing_is_named_by_readyz_and_hinders_nothing() {
    let data = tempfile::tempdir().unwrap();
    let config = data.path().join("longhaul.toml");
    std::fs::write(&config, "[[runner.upstreams]]\nname = \"files\"\ncommand = [\"/no/such/program\"]\n").unwrap();
    let mut command = longhaul(&["dev", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path()).arg("--config").arg(config).stdout(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let banner = line_with(process.0.stdout.take().unwrap(), "Metrics");
    let address = banner.split_once("http://").unwrap().1.strip_suffix("/metrics").unwrap().to_owned();
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("[+] gateway\n"), "{answer}");
    assert!(answer.contains("[ ] upstream files: "), "{answer}");
}

#[test]
fn a_gateway_takes_over_new_seal_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, config) = (folder.path().join("keys"), folder.path().join("longhaul.toml"));
    let key = |letter: &str| format!("{}=\n", letter.repeat(43));
    std::fs::write(&keys, key("A")).unwrap();
    let sha256 = "0".repeat(64);
    let text = format!("[[gateway.credentials]]\nsha256 = \"{sha256}\"\ntenant = \"t\"\nagent = \"a\"\n");
    std::fs::write(&config, text).unwrap();
    let mut command =
        longhaul(&["gateway", "--set", "management_listen=127.0.0.1:0", "--set", "gateway.listen=127.0.0.1:0"]);
    command.args(["--set", "service_token=a-token-for-the-tests", "--set", "taskstore_urls=[http://127.0.0.1:1]"]);
    command.arg("--config").arg(config).env("LONGHAUL_SEAL_KEYS_FILE", &keys).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let mut log = process.0.stderr.take().unwrap();
    line_with(&mut log, "\"address\"");
    std::fs::write(folder.path().join("new"), key("A") + &key("E")).unwrap();
    std::fs::rename(folder.path().join("new"), &keys).unwrap();
    line_with(&mut log, "the seal keys have changed");
}

#[test]
fn a_variable_that_is_not_utf_8_is_nobodys_business_unless_it_is_ours() {
    let odd = OsStr::from_bytes(ODD);
    let output = longhaul(&["config", "print"]).env("FOREIGN", odd).env(odd, "x").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    let output = longhaul(&["config", "print"]).env("LONGHAUL_SERVICE_TOKEN", odd).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", words(&output));
    assert!(words(&output).contains("LONGHAUL_SERVICE_TOKEN") && !words(&output).contains("canary"));
}

#[test]
fn a_process_that_is_ended_while_it_starts_ends_well() {
    // A database that accepts and says nothing.
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}/none", database.local_addr().unwrap());
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), KEY).unwrap();
    let mut command = longhaul(&["taskstore", "--set", "management_listen=127.0.0.1:0"]);
    command.args(["--set", "taskstore.listen=127.0.0.1:0", "--set", "service_token=a-token-for-the-tests"]);
    command.env("LONGHAUL_SEAL_KEYS_FILE", keys.path());
    command.env("LONGHAUL_TASKSTORE__DATABASE_URL", url).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    // It now waits for an answer, which is the start that lasts.
    let (mut connection, _) = database.accept().unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_ne!(connection.read(&mut [0; 64]).unwrap(), 0);
    let kill = Command::new("sh").args(["-c", &format!("kill -TERM {}", process.0.id())]).status().unwrap();
    assert!(kill.success());
    let status = process.0.wait().unwrap();
    let mut log = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    // Its own patience with the database would have ended it with an error.
    assert!(log.contains("draining"), "{log}");
}
