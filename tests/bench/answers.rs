//! How soon a tool goes on once its caller has answered, beside what that cannot be faster than: one commit, and one round
//! trip to Redis. The tool runs in this process, so that one clock sees both ends.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use longhaul_worker::{Answer, Ask as Question, Config, Context, Failure, NoArguments, Tool, Worker};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Ask, Session};
use crate::measure::{micros, percentiles};
use crate::redis::Redis;
use crate::roles::{KEY, Roles, SERVICE_TOKEN};
use crate::rows::Plan;
use crate::sql::Caller;
use crate::tasks;

/// As it is chosen with `--only`.
pub const NAME: &str = "answer accepted → tool resumes";
/// Answers before anything counts.
const WARM_UP: usize = 20;
/// In turns with as many floors.
const ANSWERS: usize = 300;
const TOOL: &str = "bench-ask";

/// What was measured, in microseconds.
pub struct Answers {
    /// From when the answer was sent until the tool went on: half took no longer.
    pub sent_p50_us: u64,
    /// Likewise, but for one of a hundred.
    pub sent_p99_us: u64,
    /// From when its client heard that it was accepted; nothing where the tool was sooner.
    pub accepted_p50_us: u64,
    /// One commit and one round trip to Redis.
    pub floor_p50_us: u64,
    /// Likewise, but for one of a hundred.
    pub floor_p99_us: u64,
}

impl Answers {
    /// From the acknowledgement, and from the sending, by the floor.
    pub fn ratios(&self) -> [f64; 2] {
        [self.accepted_p50_us, self.sent_p50_us].map(|took| took as f64 / self.floor_p50_us.max(1) as f64)
    }
}

#[derive(Deserialize)]
struct Asking {
    #[serde(rename = "inputRequests", default)]
    requests: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct Listed {
    tools: Vec<Value>,
}

/// Runs the stage, if it is wanted.
pub async fn run(roles: &mut Roles, redis: &mut Redis, floor: &mut Caller, plan: &Plan) -> Result<Option<Answers>> {
    if !NAME.contains(&plan.only) {
        return Ok(None);
    }
    let (went_on, mut goes_on) = mpsc::unbounded_channel();
    let tool = Tool::new(TOOL, move |context: Context, _: NoArguments| {
        let went_on = went_on.clone();
        async move {
            let form = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
            let response = context.request_input(Question::form("Well?", form)).await?;
            let now = Instant::now();
            response.accepted().ok_or_else(|| Failure::tool("declined"))?;
            went_on.send(now).map_err(|_| Failure::tool("nobody measures"))?;
            Ok(Answer::text("thanks"))
        }
    });
    let drain = CancellationToken::new();
    let worker = Worker::new(Config::connect(&roles.taskstore_url, SERVICE_TOKEN)?).tool(tool);
    let mut attached = worker.attached();
    let mut running = JoinSet::new();
    running.spawn(worker.run(drain.clone()));
    attached.wait_for(|attached| *attached).await.context("the worker")?;
    let mut looking = Session::open(roles.address, KEY).await?;
    let list = Ask { method: "tools/list", name: String::new(), params: String::new(), tasks: false };
    while !looking.call::<Listed>(&list).await?.tools.iter().any(|tool| tool["name"] == TOOL) {
        roles.check()?;
    }
    let mut session = Session::modern(roles.address, KEY).await?;

    let (mut sent, mut accepted, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for nth in 0..WARM_UP + ANSWERS {
        let begun = Instant::now();
        floor.insert().await?;
        redis.ping().await?;
        let floor = begun.elapsed();
        let (answered, heard, resumed) = once(&mut session, &mut goes_on).await?;
        if nth >= WARM_UP {
            floors.push(micros(floor));
            sent.push(micros(resumed.saturating_duration_since(answered)));
            accepted.push(micros(resumed.saturating_duration_since(heard)));
        }
    }
    roles.check()?;
    drain.cancel();
    running.join_next().await.context("the worker")???;
    let [sent_p50_us, sent_p99_us] = percentiles(&mut sent, [50, 99]);
    let [accepted_p50_us] = percentiles(&mut accepted, [50]);
    let [floor_p50_us, floor_p99_us] = percentiles(&mut floors, [50, 99]);
    Ok(Some(Answers { sent_p50_us, sent_p99_us, accepted_p50_us, floor_p50_us, floor_p99_us }))
}

/// One task that asks and is answered: when that was sent, when it was acknowledged, when the tool went on.
async fn once(
    session: &mut Session,
    goes_on: &mut mpsc::UnboundedReceiver<Instant>,
) -> Result<(Instant, Instant, Instant)> {
    let id = tasks::create_asking(session, TOOL).await?;
    let key = loop {
        let Asking { requests } = session.call(&tasks::of_task("tasks/get", &id)).await?;
        if let Some(key) = requests.keys().next() {
            break key.clone();
        }
    };
    let responses = json!({ key: {"action": "accept", "content": {"text": "hello"}} });
    let params = format!(r#""taskId":"{id}","inputResponses":{responses}"#);
    let update = Ask { method: "tasks/update", name: id.clone(), params, tasks: true };
    let sent = Instant::now();
    let acknowledged: Value = session.call(&update).await?;
    let heard = Instant::now();
    ensure!(acknowledged["resultType"] == "complete", "the answer was not taken: {acknowledged}");
    Ok((sent, heard, goes_on.recv().await.context("the tool did not go on")?))
}
