//! The Redis bus against real Redis servers: the shared one of the test run, and own ones where they are hurt.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fmt::Debug;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_bus::{Bus, Control, Hint, RedisBus, Wish};
use longhaul_core::TaskId;
use redis::AsyncCommands;
use tokio::sync::broadcast::Receiver;

/// A hint that has not come by then will not come.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a frozen Redis may cost before the bus says so.
const FROZEN_MAX: Duration = Duration::from_secs(7);

#[tokio::test]
async fn a_hint_published_on_one_bus_is_heard_on_the_other_and_once_on_its_own() {
    let redis = shared();
    let prefix = prefix();
    let (one, mut own) = up(&redis, &prefix).await;
    let (two, mut other) = up(&redis, &prefix).await;

    let said = [
        task(1, 1),
        task(u128::MAX, 7),
        Hint::Control(Control::Tools),
        Hint::Control(Control::SessionTask { session: "c2Vz-_s=".to_owned(), id: TaskId::from_random(3) }),
    ];
    for hint in &said {
        one.publish(hint.clone());
    }
    for hint in &said {
        heard(&mut own, hint).await;
        heard(&mut other, hint).await;
    }
    // The answer of the other bus comes after all echoes of the first, on the same connection.
    two.publish(task(2, 2));
    assert_eq!(next(&mut own).await, task(2, 2), "nothing was heard twice");
}

#[tokio::test]
async fn another_prefix_is_another_bus() {
    let redis = shared();
    let (here, there) = (prefix(), prefix());
    let (one, _) = up(&redis, &here).await;
    let (_same, mut same_hints) = up(&redis, &here).await;
    let (other, mut foreign) = up(&redis, &there).await;

    one.publish(task(1, 1));
    heard(&mut same_hints, &task(1, 1)).await;
    other.publish(task(9, 9));
    assert_eq!(next(&mut foreign).await, task(9, 9), "the foreign bus has heard only itself");
}

#[tokio::test]
async fn garbage_on_the_channels_is_ignored() {
    let redis = shared();
    let prefix = prefix();
    let (bus, mut hints) = up(&redis, &prefix).await;

    let mut vandal = redis::Client::open(redis).unwrap().get_multiplexed_async_connection().await.unwrap();
    for garbage in [&b""[..], b"\xff\x00", b"{\"task\":1}", b"1 o task nope 1", b"2 o tools", &[b'a'; 100_000]] {
        for channel in ["task:0", "task:63", "control"] {
            let _: i64 = vandal.publish(format!("{prefix}:{channel}"), garbage).await.unwrap();
        }
    }
    let _: i64 = vandal.publish(format!("{prefix}:control"), "1 vandal tools").await.unwrap();

    assert_eq!(next(&mut hints).await, Hint::Control(Control::Tools), "the first message of the right shape");
    assert!(bus.healthy());
}

#[tokio::test]
async fn killed_subscriptions_come_back_and_the_gap_is_told() {
    let redis = Server::start();
    let (one, _) = up(&redis.url(), "longhaul").await;
    let (two, mut hints) = up(&redis.url(), "longhaul").await;

    let mut operator = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let killed: i64 =
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query_async(&mut operator).await.unwrap();
    assert_eq!(killed, 2);

    assert_eq!(next(&mut hints).await, Hint::Missed, "the connection is lost");
    assert_eq!(next(&mut hints).await, Hint::Missed, "the connection is back");
    assert!(two.healthy());
    // Published while its own connection may still be down: it waits in the queue.
    one.publish(task(1, 2));
    heard(&mut hints, &task(1, 2)).await;
}

#[tokio::test]
async fn a_restarted_redis_is_found_again() {
    let mut redis = Server::start();
    let (one, _) = up(&redis.url(), "longhaul").await;
    let (two, mut hints) = up(&redis.url(), "longhaul").await;

    redis.kill();
    assert_eq!(next(&mut hints).await, Hint::Missed);
    assert!(!two.healthy());
    // A process hears itself without Redis, and others once it is back.
    two.publish(task(5, 5));
    assert_eq!(next(&mut hints).await, task(5, 5));
    one.publish(task(6, 6));

    redis.restart();
    heard(&mut hints, &Hint::Missed).await;
    assert!(two.healthy());
    one.publish(task(7, 7));
    heard(&mut hints, &task(7, 7)).await;
}

#[tokio::test]
async fn a_frozen_redis_is_noticed_in_time_holds_nobody_up_and_is_used_again_when_it_thaws() {
    let redis = Server::start();
    let (bus, mut hints) = up(&redis.url(), "longhaul").await;

    redis.signal("STOP");
    let frozen = Instant::now();
    // Ten times what the queue to Redis holds.
    let publishing = Instant::now();
    for version in 0..80_000 {
        bus.publish(task(1, version));
    }
    assert!(publishing.elapsed() < Duration::from_secs(2), "publishing took {:?}", publishing.elapsed());

    let mut hints_again = bus.subscribe();
    heard(&mut hints_again, &Hint::Missed).await;
    assert!(!bus.healthy());
    assert!(frozen.elapsed() < FROZEN_MAX, "noticed after {:?}", frozen.elapsed());

    redis.signal("CONT");
    heard(&mut hints_again, &Hint::Missed).await;
    assert!(bus.healthy());
    assert!(
        matches!(hints.try_recv(), Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_))),
        "a subscriber that does not read is told that it missed hints"
    );
}

#[tokio::test]
async fn a_bus_may_start_before_its_redis() {
    let mut redis = Server::start();
    redis.kill();
    let bus = RedisBus::connect(&redis.url(), "longhaul").unwrap();
    let mut hints = bus.subscribe();
    assert!(!bus.healthy());
    bus.publish(task(1, 1));
    assert_eq!(next(&mut hints).await, task(1, 1));

    redis.restart();
    heard(&mut hints, &Hint::Missed).await;
    assert!(bus.healthy());
}

#[tokio::test]
async fn a_redis_that_refuses_to_publish_is_never_called_healthy() {
    let redis = Server::start();
    let mut operator = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let _: String = redis::cmd("ACL")
        .arg(&["SETUSER", "mute", "on", ">secret", "allchannels", "+hello", "+auth", "+subscribe"])
        .query_async(&mut operator)
        .await
        .unwrap();
    let bus = RedisBus::connect(&redis.url().replace("redis://", "redis://mute:secret@"), "longhaul").unwrap();

    // It has subscribed when Redis counts its channels; its first heartbeat was refused soon after.
    let subscribed = async {
        loop {
            let channels: Vec<String> =
                redis::cmd("PUBSUB").arg("CHANNELS").arg("longhaul:control").query_async(&mut operator).await.unwrap();
            let refused: String = redis::cmd("INFO").arg("errorstats").query_async(&mut operator).await.unwrap();
            if !channels.is_empty() && refused.contains("NOPERM") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, subscribed).await.expect("the bus connects and tries to publish");
    assert!(!bus.healthy());
}

#[tokio::test]
async fn the_least_rights_are_enough() {
    let redis = Server::start();
    let mut operator = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let _: String = redis::cmd("ACL")
        .arg(&["SETUSER", "hints", "on", ">secret", "resetchannels", "&longhaul:*", "-@all"])
        .arg(&["+hello", "+auth", "+publish", "+subscribe"])
        .query_async(&mut operator)
        .await
        .unwrap();
    let bus = RedisBus::connect(&redis.url().replace("redis://", "redis://hints:secret@"), "longhaul").unwrap();
    let mut hints = bus.subscribe();
    heard(&mut hints, &Hint::Missed).await;
    assert!(bus.healthy());
}

#[test]
fn a_wrong_url_is_an_error_at_once() {
    for url in ["", "127.0.0.1:6379", "http://127.0.0.1", "redis://:nope:"] {
        assert!(RedisBus::connect(url, "longhaul").is_err(), "{url:?}");
    }
}

fn task(bits: u128, version: u64) -> Hint {
    Hint::Task { id: TaskId::from_random(bits), version }
}

/// The next hint, whatever it is.
async fn next(hints: &mut Receiver<Hint>) -> Hint {
    tokio::time::timeout(PATIENCE, hints.recv()).await.expect("no hint in time").unwrap()
}

/// Waits for this hint and passes over others.
async fn heard(hints: &mut Receiver<Hint>, wanted: &(impl PartialEq<Hint> + Debug)) {
    let waiting = async { while *wanted != hints.recv().await.unwrap() {} };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{wanted:?} was not heard"));
}

#[tokio::test]
async fn buckets_on_redis_are_shared_give_what_they_hold_and_are_gone_when_they_are_full() {
    let (redis, prefix) = (shared(), prefix());
    let one = RedisBus::connect(&redis, &prefix).unwrap().quotas().unwrap();
    let other = RedisBus::connect(&redis, &prefix).unwrap().quotas().unwrap();
    // So slow that nothing is gained during the test, and so fast that a bucket is full soon.
    let slow = |wanted, empties| Wish {
        bucket: "slow".into(),
        wanted,
        interval: Duration::from_secs(3600),
        burst: 5,
        empties,
    };
    let fast =
        Wish { bucket: "fast".into(), wanted: 3, interval: Duration::from_millis(100), burst: 3, empties: false };
    assert_eq!(one.take(&[]).await.unwrap(), []);
    let given = one.take(&[slow(3, false), fast.clone()]).await.unwrap();
    assert_eq!(given.iter().map(|given| given.granted).collect::<Vec<_>>(), [3, 3]);
    assert!(given[0].next.is_zero() && given[1].next > Duration::ZERO && given[1].next <= Duration::from_millis(100));
    let given = other.take(&[slow(3, false)]).await.unwrap()[0];
    assert_eq!(given.granted, 2);
    assert!(given.next > Duration::from_secs(3590) && given.next <= Duration::from_secs(3600), "{given:?}");
    assert_eq!(one.take(&[slow(1, false)]).await.unwrap()[0].granted, 0);
    assert_eq!(other.take(&[Wish { bucket: "new".into(), ..slow(1, true) }]).await.unwrap()[0].granted, 0);
    assert_eq!(one.take_now(&[]), None, "Redis has to be waited for");

    let mut redis = redis::Client::open(redis).unwrap().get_multiplexed_async_connection().await.unwrap();
    let gone = async {
        let key = format!("{prefix}:quota:fast");
        while redis.exists::<_, bool>(&key).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(one.take(&[fast]).await.unwrap()[0].granted, 3);
}

#[tokio::test]
async fn quotas_that_cannot_be_reached_say_so_and_come_back() {
    let mut redis = Server::start();
    let quotas = RedisBus::connect(&redis.url(), "longhaul").unwrap().quotas().unwrap();
    assert!(quotas.take(&[]).await.is_ok());
    redis.kill();
    assert!(quotas.take(&[]).await.is_err());
    redis.restart();
    let back = async { while quotas.take(&[]).await.is_err() {} };
    tokio::time::timeout(PATIENCE, back).await.unwrap();
}

/// A bus whose connection stands, and what is heard on it.
async fn up(url: &str, prefix: &str) -> (RedisBus, Receiver<Hint>) {
    let bus = RedisBus::connect(url, prefix).unwrap();
    // Nothing awaits before this, so the first `Missed` cannot have passed.
    let mut hints = bus.subscribe();
    heard(&mut hints, &Hint::Missed).await;
    assert!(bus.healthy());
    (bus, hints)
}

/// The Redis of the test run.
fn shared() -> String {
    std::env::var_os("LONGHAUL_TEST_REDIS")
        .expect("LONGHAUL_TEST_REDIS is not set: run `make test`, which starts Postgres and Redis")
        .into_string()
        .unwrap()
}

/// Channels that no other test uses.
fn prefix() -> String {
    format!("test-{:016x}", getrandom::u64().unwrap())
}

/// A Redis of one test, to be hurt.
struct Server {
    port: u16,
    folder: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another process may take the free port before Redis does: then another one is tried.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(process) = Self::launch(port, &folder) {
                return Self { port, folder, process };
            }
        }
        panic!("redis-server does not start");
    }

    /// A process that answers on the port; `None` if it ended instead.
    fn launch(port: u16, folder: &tempfile::TempDir) -> Option<Child> {
        let mut process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string(), "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server runs: `make test` installs it");
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let answers = || {
            let mut redis = client.get_connection_with_timeout(Duration::from_secs(1))?;
            redis::cmd("PING").query::<String>(&mut redis)
        };
        let deadline = Instant::now() + PATIENCE;
        while answers().is_err() {
            if Instant::now() > deadline || process.try_wait().unwrap().is_some() {
                let _ = process.kill();
                process.wait().unwrap();
                return None;
            }
            std::thread::yield_now();
        }
        Some(process)
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.process.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.process = Self::launch(self.port, &self.folder).expect("redis-server starts again on its port");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
