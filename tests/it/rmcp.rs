//! The official Rust client, as published, in both eras.

use std::time::Duration;

use longhaul_tests::client::PATIENCE;
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities, ClientConfig, ElicitRequestParams,
    ElicitResult, ElicitationAction, GetTaskParams, Implementation, InputRequest, ProgressNotificationParam,
    ProtocolVersion, TaskPayload, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt as _, ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A person who answers "blue", or declines what they are told to decline.
struct Person {
    tasks: bool,
    progress: mpsc::UnboundedSender<f64>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let able = ClientCapabilities::builder().enable_elicitation();
        let able = if self.tasks { able.enable_tasks().build() } else { able.build() };
        ClientConfig::new(able, Implementation::new("longhaul-tests", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(reply(&request))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.progress.send(params.progress);
    }
}

fn reply(request: &ElicitRequestParams) -> ElicitResult {
    match request {
        ElicitRequestParams::FormElicitationParams { message, .. } if !message.contains("decline") => {
            ElicitResult::new(ElicitationAction::Accept).with_content(json!({"answer": format!("blue, to {message}")}))
        }
        _ => ElicitResult::new(ElicitationAction::Decline),
    }
}

struct Connection {
    client: RunningService<RoleClient, Person>,
    progress: mpsc::UnboundedReceiver<f64>,
}

const ERAS: [fn() -> ClientLifecycleMode; 2] = [legacy, modern];

fn legacy() -> ClientLifecycleMode {
    ClientLifecycleMode::Initialize
}

fn modern() -> ClientLifecycleMode {
    let (preferred_versions, legacy_version) = (vec![ProtocolVersion::V_2026_07_28], None);
    ClientLifecycleMode::Auto { preferred_versions, legacy_version }
}

impl Connection {
    async fn open(url: &str, token: &str, era: ClientLifecycleMode, tasks: bool) -> Self {
        let (told, progress) = mpsc::unbounded_channel();
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(token);
        let transport = StreamableHttpClientTransport::from_config(config);
        let client = Person { tasks, progress: told }.serve_with_lifecycle(transport, era).await.unwrap();
        Self { client, progress }
    }

    /// Calls a tool, and answers what is asked on the way.
    async fn call(&self, tool: &'static str, arguments: Value) -> Result<Value, ServiceError> {
        let result = tokio::time::timeout(PATIENCE, self.client.call_tool(params(tool, arguments))).await.unwrap()?;
        Ok(serde_json::to_value(result).unwrap())
    }

    /// Calls a tool that the server makes a task; gives its id.
    async fn create(&self, tool: &'static str, arguments: Value) -> String {
        match self.client.call_tool_once(params(tool, arguments)).await.unwrap() {
            CallToolResponse::Task(created) => created.task.task_id,
            other => panic!("no task: {other:?}"),
        }
    }

    async fn get(&self, task: &str) -> Result<TaskPayload, ServiceError> {
        Ok(self.client.get_task(GetTaskParams::new(task)).await?.task.payload)
    }

    async fn cancel(&self, task: &str) -> Result<(), ServiceError> {
        self.client.cancel_task(CancelTaskParams::new(task)).await
    }

    /// Polls until the task has ended, and answers what it asks.
    async fn ended(&self, task: &str) -> TaskPayload {
        let ended = async {
            loop {
                match self.get(task).await.unwrap() {
                    TaskPayload::Working => tokio::time::sleep(Duration::from_millis(20)).await,
                    TaskPayload::InputRequired { input_requests } => {
                        let answers = input_requests.into_iter().map(|(key, request)| match request {
                            InputRequest::Elicitation(asked) => (key, json!(reply(&asked.params))),
                            other => panic!("asked for {other:?}"),
                        });
                        self.client.update_task(UpdateTaskParams::new(task, answers.collect())).await.unwrap();
                    }
                    payload => return payload,
                }
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the task does not end")
    }

    async fn close(self) {
        self.client.cancel().await.unwrap();
    }
}

fn params(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone())
}

fn code<T: std::fmt::Debug>(refused: Result<T, ServiceError>) -> i32 {
    match refused.unwrap_err() {
        ServiceError::McpError(error) => error.code.0,
        other => panic!("{other}"),
    }
}

async fn it_learns_of_the_tools_and_of_tasks_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    for era in ERAS {
        let is_modern = era() != legacy();
        let connection = Connection::open(&world.urls[0], ALICE, era(), false).await;
        let server = connection.client.peer_info().unwrap();
        let version = if is_modern { ProtocolVersion::V_2026_07_28 } else { ProtocolVersion::V_2025_11_25 };
        assert_eq!(server.protocol_version, version);
        assert_eq!(server.capabilities.supports_tasks(), is_modern, "{:?}", server.capabilities);
        let tools = connection.client.list_all_tools().await.unwrap();
        for name in ["echo", "countdown", "ask", "fail"] {
            assert!(tools.iter().any(|tool| tool.name == name), "{name} is not in the list");
        }
        connection.close().await;
    }
    world.stop().await;
}

async fn it_calls_plainly_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    for era in ERAS {
        let mut connection = Connection::open(&world.urls[0], ALICE, era(), false).await;
        let said = json!({"text": "π", "nested": {"list": [1, 2.5, null, true]}});
        assert_eq!(connection.call("echo", said.clone()).await.unwrap()["structuredContent"], said);
        let failed = connection.call("fail", json!({"message": "out of paper"})).await.unwrap();
        assert_eq!((&failed["isError"], &failed["content"][0]["text"]), (&json!(true), &json!("out of paper")));
        assert_eq!(code(connection.call("fail", json!({"message": "out of order", "code": -31001})).await), -31001);
        assert_eq!(code(connection.call("no_such_tool", json!({})).await), -32602);

        let counted = connection.call("countdown", json!({"seconds": 0.2, "steps": 4})).await.unwrap();
        assert_eq!(counted["content"][0]["text"], "counted down 0.2 s");
        let mut seen = Vec::new();
        while let Ok(progress) = connection.progress.try_recv() {
            seen.push(progress);
        }
        assert!(seen.len() >= 4 && seen.is_sorted(), "{seen:?}");
        connection.close().await;
    }
    world.stop().await;
}

async fn it_answers_the_question_of_a_plain_call_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    for era in ERAS {
        let connection = Connection::open(&world.urls[0], ALICE, era(), false).await;
        let answered = connection.call("ask", json!({"question": "Which colour?"})).await.unwrap();
        assert_eq!(answered["content"][0]["text"], "You said: blue, to Which colour?");
        let declined = connection.call("ask", json!({"question": "Please decline"})).await.unwrap();
        assert_eq!((&declined["isError"], &declined["content"][0]["text"]), (&json!(true), &json!("declined")));
        connection.close().await;
    }
    world.stop().await;
}

async fn its_call_is_made_a_task_only_in_2026_and_only_if_it_says_so(wiring: Wiring) {
    let world = World::start(wiring).await;
    for (era, tasks) in [(legacy as fn() -> _, false), (legacy, true), (modern, false)] {
        let connection = Connection::open(&world.urls[0], ALICE, era(), tasks).await;
        let response = connection.client.call_tool_once(params("echo", json!({"text": "hello"}))).await.unwrap();
        assert!(matches!(response, CallToolResponse::Complete(_)), "{:?}, {tasks}: {response:?}", era());
        connection.close().await;
    }
    let connection = Connection::open(&world.urls[0], ALICE, modern(), true).await;
    let response = connection.client.call_tool_once(params("echo", json!({"text": "hello"}))).await.unwrap();
    let CallToolResponse::Task(created) = response else { panic!("no task: {response:?}") };
    assert!(created.task.ttl_ms.unwrap() >= 3_600_000 && created.task.poll_interval_ms.unwrap() > 0, "{created:?}");
    connection.close().await;
    world.stop().await;
}

async fn its_task_is_polled_to_its_result_on_another_replica(wiring: Wiring) {
    let world = World::start(wiring).await;
    let one = Connection::open(&world.urls[0], ALICE, modern(), true).await;
    let other = Connection::open(&world.urls[1], ALICE, modern(), true).await;
    let task = one.create("countdown", json!({"seconds": 0.3})).await;
    one.close().await;
    let TaskPayload::Completed { result } = other.ended(&task).await else { panic!("not completed") };
    assert_eq!(result["content"][0]["text"], "counted down 0.3 s");

    let task = other.create("fail", json!({"message": "out of paper"})).await;
    let TaskPayload::Completed { result } = other.ended(&task).await else { panic!("not completed") };
    assert_eq!((&result["isError"], &result["content"][0]["text"]), (&json!(true), &json!("out of paper")));
    let task = other.create("fail", json!({"message": "out of order", "code": -31001})).await;
    let TaskPayload::Failed { error } = other.ended(&task).await else { panic!("not failed") };
    assert_eq!((&error["code"], &error["message"]), (&json!(-31001), &json!("out of order")));
    other.close().await;
    world.stop().await;
}

async fn it_answers_the_question_of_its_task(wiring: Wiring) {
    let world = World::start(wiring).await;
    let one = Connection::open(&world.urls[0], ALICE, modern(), true).await;
    let other = Connection::open(&world.urls[1], ALICE, modern(), true).await;
    for (question, is_error, text) in
        [("Which task?", false, "You said: blue, to Which task?"), ("Please decline", true, "declined")]
    {
        let task = one.create("ask", json!({"question": question})).await;
        let TaskPayload::Completed { result } = other.ended(&task).await else { panic!("not completed") };
        assert_eq!(result["content"][0]["text"], text);
        assert_eq!(result.get("isError") == Some(&json!(true)), is_error);
    }
    one.close().await;
    other.close().await;
    world.stop().await;
}

async fn it_cancels_its_task_and_hears_nothing_of_anothers(wiring: Wiring) {
    let world = World::start(wiring).await;
    let connection = Connection::open(&world.urls[0], ALICE, modern(), true).await;
    let task = connection.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, task);
    let bob = Connection::open(&world.urls[1], BOB, modern(), true).await;
    for unknown in [&*task, "aaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        assert_eq!(code(bob.get(unknown).await), -32602);
        assert_eq!(code(bob.cancel(unknown).await), -32602);
    }
    assert_eq!(connection.get(&task).await.unwrap(), TaskPayload::Working);
    for _ in 0..2 {
        connection.cancel(&task).await.unwrap();
        assert_eq!(connection.get(&task).await.unwrap(), TaskPayload::Cancelled);
    }
    assert_eq!(world.gate.stopped().await, task, "its work is told");
    bob.close().await;
    connection.close().await;
    world.stop().await;
}

crate::both!(
    it_learns_of_the_tools_and_of_tasks_in_both_eras,
    it_calls_plainly_in_both_eras,
    it_answers_the_question_of_a_plain_call_in_both_eras,
    its_call_is_made_a_task_only_in_2026_and_only_if_it_says_so,
    its_task_is_polled_to_its_result_on_another_replica,
    it_answers_the_question_of_its_task,
    it_cancels_its_task_and_hears_nothing_of_anothers,
);
