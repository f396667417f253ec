use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use longhaul_bus::{LocalQuotas, QuotaError};
use longhaul_core::{Caller, TenantId};
use tokio::task::JoinSet;
use tokio::time::{advance, sleep};

use super::*;

/// Quotas elsewhere, which may be out of reach.
#[derive(Default)]
struct Elsewhere {
    buckets: LocalQuotas,
    is_gone: AtomicBool,
}

#[async_trait]
impl Quotas for Elsewhere {
    async fn take(&self, wishes: &[Wish]) -> Result<Vec<Grant>, QuotaError> {
        sleep(Duration::from_millis(2)).await;
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(QuotaError::new("gone"));
        }
        self.buckets.take(wishes).await
    }

    fn take_now(&self, _wishes: &[Wish]) -> Option<Result<(), (usize, Duration)>> {
        None
    }
}

fn agent(name: &str) -> Principal {
    Principal { tenant: TenantId::new("t"), caller: Caller::Agent(name.into()) }
}

fn tool(name: &str) -> Target {
    Target::Tool(name.into())
}

fn config(per_principal: &str, replicas: u32) -> RatesConfig {
    let calls = Limits { per_principal: Some(per_principal.parse().unwrap()), ..Limits::default() };
    RatesConfig { calls, replicas, ..RatesConfig::default() }
}

/// Replicas that run, and keep a limit together.
struct Cluster {
    replicas: Vec<Arc<Rates>>,
    quotas: Arc<Elsewhere>,
    passed: Vec<Instant>,
    _running: JoinSet<()>,
}

impl Cluster {
    async fn start(rate: &str, replicas: u32) -> Self {
        let quotas = Arc::new(Elsewhere::default());
        let one = || Arc::new(Rates::new(&config(rate, replicas), Some(quotas.clone())).unwrap());
        let all: Vec<_> = (0..replicas).map(|_| one()).collect();
        let mut running = JoinSet::new();
        for rates in &all {
            let rates = rates.clone();
            running.spawn(async move { match rates.run().await {} });
        }
        sleep(Duration::from_millis(10)).await;
        assert!(all.iter().all(|rates| rates.is_shared()));
        Self { replicas: all, quotas, passed: Vec::new(), _running: running }
    }

    /// Calls one replica after the other for some time; how many of them pass.
    async fn call(&mut self, time: Duration, pause: Duration) -> usize {
        let (end, before) = (Instant::now() + time, self.passed.len());
        while Instant::now() < end {
            for rates in &self.replicas {
                match rates.check(&[Kind::Call], &agent("a"), &tool("x")) {
                    Ok(()) => self.passed.push(Instant::now()),
                    Err(denied) => assert!(denied.retry_after.unwrap() <= Duration::from_secs(60), "{denied:?}"),
                }
            }
            sleep(pause).await;
        }
        self.passed.len() - before
    }

    /// In no stretch of time more has passed than the rate allows.
    fn assert_kept(&self, burst: usize, interval: Duration) {
        assert!(!self.passed.is_empty());
        for (nth, from) in self.passed.iter().enumerate() {
            for (count, to) in self.passed[nth..].iter().enumerate() {
                let allowed = burst + (to.duration_since(*from).as_micros() / interval.as_micros()) as usize;
                assert!(count < allowed, "{} in {:?}", count + 1, to.duration_since(*from));
            }
        }
    }
}

#[test]
fn a_rate_is_read_as_it_is_written() {
    for text in ["1/s", "60/m", "5/h", "1000000/d"] {
        assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
    }
    for text in ["", "60", "0/s", "-1/s", "1/w", "1/", "/s", "1000001/s", "1.5/s"] {
        assert!(text.parse::<Rate>().unwrap_err().contains("60/m"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_one_process_a_burst_passes_and_then_one_each_interval() {
    let rates = Rates::new(&config("6/m", 2), Some(Arc::new(LocalQuotas::default()))).unwrap();
    let call = |name: &str| rates.check(&[Kind::Call], &agent(name), &tool("x"));
    for _ in 0..6 {
        call("a").unwrap();
    }
    let denied = call("a").unwrap_err();
    assert_eq!((denied.by, denied.retry_after), (Check::RateLimit, Some(Duration::from_secs(10))));
    call("b").unwrap();
    advance(Duration::from_secs(10)).await;
    call("a").unwrap();
    call("a").unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_call_counts_for_its_caller_its_tenant_and_its_tool_or_for_none() {
    let rate = |text: &str| Some(text.parse::<Rate>().unwrap());
    let per_tool = BTreeMap::from([("small".to_owned(), "1/m".parse().unwrap())]);
    let config = RatesConfig {
        calls: Limits { per_principal: rate("2/m"), per_tenant: rate("3/m"), per_tool },
        creates: Limits { per_principal: rate("1/h"), ..Limits::default() },
        polls_per_task: None,
        replicas: 1,
    };
    let rates = Rates::new(&config, Some(Arc::new(LocalQuotas::default()))).unwrap();
    let (call, create) = ([Kind::Call], [Kind::Call, Kind::Create]);
    rates.check(&create, &agent("a"), &tool("small")).unwrap();
    let denied = rates.check(&create, &agent("a"), &tool("x")).unwrap_err();
    assert_eq!(denied.message, Kind::Create.no());
    // The tool's one call is spent, and those that were refused count for nobody.
    rates.check(&call, &agent("b"), &tool("small")).unwrap_err();
    rates.check(&call, &agent("a"), &tool("x")).unwrap();
    rates.check(&call, &agent("a"), &tool("x")).unwrap_err();
    rates.check(&call, &agent("b"), &Target::Prompt("p".into())).unwrap();
    rates.check(&call, &agent("c"), &tool("x")).unwrap_err();
    let stranger = Principal { tenant: TenantId::new("other"), ..agent("a") };
    rates.check(&call, &stranger, &tool("x")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn replicas_together_let_pass_what_one_would() {
    let mut cluster = Cluster::start("60/m", 2).await;
    // All of a burst, and a minute's.
    let passed = cluster.call(Duration::from_secs(60), Duration::from_millis(20)).await;
    assert!((115..=120).contains(&passed), "{passed}");
    cluster.assert_kept(60, Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn one_replica_alone_has_the_whole_rate_though_not_the_whole_burst() {
    let mut cluster = Cluster::start("60/m", 2).await;
    cluster.replicas.pop();
    let passed = cluster.call(Duration::from_secs(60), Duration::from_millis(20)).await;
    assert!((100..=120).contains(&passed), "{passed}");
    cluster.assert_kept(60, Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn without_the_shared_buckets_each_replica_keeps_its_share_and_the_limit_holds_all_the_same() {
    let mut cluster = Cluster::start("60/m", 3).await;
    let pause = Duration::from_millis(40);
    cluster.call(Duration::from_secs(5), pause).await;
    cluster.quotas.is_gone.store(true, Ordering::Relaxed);
    let passed = cluster.call(Duration::from_secs(60), pause).await;
    assert!((50..=62).contains(&passed), "{passed}");
    assert!(cluster.replicas.iter().all(|rates| !rates.is_shared()));
    cluster.quotas.is_gone.store(false, Ordering::Relaxed);
    let passed = cluster.call(Duration::from_secs(60), pause).await;
    assert!((40..=62).contains(&passed), "{passed}");
    assert!(cluster.replicas.iter().all(|rates| rates.is_shared()));
    // They come back up to half a second after one another, and who is still alone gains two thirds of the rate.
    cluster.assert_kept(61, Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_shared_each_replica_keeps_its_share() {
    let rates = Rates::new(&config("12/m", 3), None).unwrap();
    let call = || rates.check(&[Kind::Call], &agent("a"), &tool("x"));
    call().unwrap();
    call().unwrap();
    assert_eq!(call().unwrap_err().retry_after, Some(Duration::from_secs(15)));
    advance(Duration::from_secs(15)).await;
    call().unwrap();
    call().unwrap_err();
    assert!(!rates.is_shared());
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_one_call_for_each_replica_is_kept_without_sharing() {
    let mut cluster = Cluster::start("3/m", 3).await;
    let passed = cluster.call(Duration::from_secs(59), Duration::from_secs(1)).await;
    assert_eq!(passed, 3);
    cluster.call(Duration::from_secs(120), Duration::from_secs(1)).await;
    cluster.assert_kept(3, Duration::from_secs(20));
}

#[test]
fn a_limit_smaller_than_the_replicas_is_refused() {
    let wrong = Rates::new(&config("2/h", 3), None).unwrap_err();
    assert!(wrong.contains("2/h") && wrong.contains("3 replicas"), "{wrong}");
    assert!(Rates::new(&config("2/h", 3), Some(Arc::new(LocalQuotas::default()))).is_ok());
    assert!(Rates::new(&config("2/h", 0), None).is_err());
}

#[test]
fn each_task_has_its_own_polls() {
    let config = RatesConfig { polls_per_task: Some("4/h".parse().unwrap()), replicas: 2, ..RatesConfig::default() };
    let rates = Rates::new(&config, None).unwrap();
    let poll = |name: &str, task: u128| rates.poll(&agent(name), TaskId::from_random(task));
    poll("a", 1).unwrap();
    poll("a", 1).unwrap();
    let denied = poll("a", 1).unwrap_err();
    assert!(denied.retry_after.unwrap() > Duration::from_secs(1700), "{denied:?}");
    poll("a", 2).unwrap();
    // Who is not the owner does not use up the owner's.
    poll("b", 1).unwrap();
    Rates::new(&RatesConfig { replicas: 1, ..RatesConfig::default() }, None)
        .unwrap()
        .poll(&agent("a"), TaskId::from_random(1))
        .unwrap();
}

#[test]
fn no_bucket_names_its_caller() {
    let name = Bucket::new(b'c', b'p', &["acme", &agent("someone").owner()]).name();
    assert!(!name.contains("acme") && !name.contains("someone"), "{name}");
    assert_ne!(Bucket::new(b'c', b'p', &["a", "bc"]), Bucket::new(b'c', b'p', &["ab", "c"]));
}
