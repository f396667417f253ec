//! Requests as they should not be: each gets its code, nothing runs, and the next request is served.

use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::client::{Client, Connection};
use crate::world::{ALICE, BOB, World};

fn call(arguments: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#)
        .into()
}

#[tokio::test]
async fn a_body_that_is_no_message_is_400() {
    let world = World::start().await;
    let client = world.alice().await;
    let deep = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let in_unknown = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","x":{}{}}}"#,
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    let utf16: Vec<u8> = "\u{feff}{\"jsonrpc\":\"2.0\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let table: [(&str, Vec<u8>, i64, Value); 24] = [
        ("empty", b"".to_vec(), -32700, Value::Null),
        ("cut", br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"#.to_vec(), -32700, Value::Null),
        ("not UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ec\xffho\"}".to_vec(), -32700, Value::Null),
        ("overlong NUL", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xc0\x80\"}".to_vec(), -32700, Value::Null),
        (
            "UTF-8 surrogate",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xed\xa0\x80\"}".to_vec(),
            -32700,
            Value::Null,
        ),
        ("lone surrogate", call(r#"{"a":"\ud800"}"#), -32700, Value::Null),
        ("BOM", [b"\xef\xbb\xbf", &*call("{}")].concat(), -32700, Value::Null),
        ("UTF-16", utf16, -32700, Value::Null),
        ("raw NUL", call("{\"a\":\"ec\0ho\"}"), -32700, Value::Null),
        ("NaN", call(r#"{"a":NaN}"#), -32700, Value::Null),
        ("key twice", br#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#.to_vec(), -32600, json!(1)),
        (
            "key twice, hidden",
            br#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"tools/list"}"#.to_vec(),
            -32600,
            json!(1),
        ),
        ("key twice, deep", call(r#"{"path":"/public","path":"/etc/shadow"}"#), -32600, json!(1)),
        ("too deep", call(&deep(129)), -32600, json!(1)),
        ("far too deep", in_unknown.into(), -32600, json!(1)),
        ("1e400", call(r#"{"n":1e400}"#), -32600, json!(1)),
        ("batch", [b"[", &*call("{}"), b"]"].concat(), -32600, Value::Null),
        ("empty batch", b"[]".to_vec(), -32600, Value::Null),
        ("id null", br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_vec(), -32600, Value::Null),
        ("id object", br#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#.to_vec(), -32600, Value::Null),
        ("id fraction", br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_vec(), -32600, Value::Null),
        ("jsonrpc 1.0", br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_vec(), -32600, json!(1)),
        ("no method", br#"{"jsonrpc":"2.0","id":1}"#.to_vec(), -32600, json!(1)),
        (
            "params array",
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["echo"]}"#.to_vec(),
            -32602,
            json!(1),
        ),
    ];
    for (name, body, code, id) in table {
        let mut connection = client.send("POST", "", &body).await;
        let answer = connection.answer().await.unwrap();
        assert_eq!((answer.status(), answer.code()), (400, Some(code)), "{name}");
        assert_eq!(answer.json().get("id").cloned().unwrap_or_default(), id, "{name}");
        assert_eq!(answer.head.header("content-type"), Some("application/json"));
        // The same connection serves a good request.
        let good = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
        connection.send(&client.request("POST", "", good.as_bytes())).await;
        assert_eq!(connection.answer().await.unwrap().json()["id"], 2, "{name}");
    }
    assert!(world.worker.calls.lock().unwrap().is_empty(), "something ran");
}

#[tokio::test]
async fn an_answer_to_nothing_is_400_and_notifications_are_202() {
    let world = World::start().await;
    let client = world.alice().await;
    for body in [
        json!({"jsonrpc": "2.0", "id": "tiq-task-x-1", "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}),
    ] {
        let answer = client.post(&body).await;
        assert_eq!((answer.status(), answer.code()), (400, Some(-32602)));
        assert!(answer.json().get("id").is_none());
    }
    client.notify("notifications/initialized", json!({})).await;
    client.notify("notifications/nonsense", json!({"a": 1})).await;
    let answer = client.call("tasks/destroy", json!({})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-32601)));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_from_what_it_declares_or_as_it_comes() {
    let world = World::start().await;
    let client = world.alice().await;
    let limit = 4 * 1024 * 1024;
    let empty = call(r#"{"a":""}"#).len();
    // A string may have 1 MiB only, so the text is spread.
    let padded = |size: usize| {
        let mut body = call(r#"{"a":""}"#);
        body.resize(body.len() + size - empty, b' ');
        body
    };
    let answer = client.send("POST", "", &padded(limit)).await.answer().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer = client.send("POST", "", &padded(limit + 1)).await.answer().await.unwrap();
    assert_eq!(answer.status(), 413);
    // Declared, and never sent.
    let lie = String::from_utf8(client.request("POST", "", b"{"))
        .unwrap()
        .replace("Content-Length: 1\r\n", "Content-Length: 10737418240\r\n");
    let mut connection = Connection::open(client.to).await;
    connection.send(lie.as_bytes()).await;
    let answer = connection.answer().await.unwrap();
    assert_eq!((answer.status(), answer.head.header("connection")), (413, Some("close")));
    // Not declared.
    let head = String::from_utf8(client.request("POST", "", b""))
        .unwrap()
        .replace("Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n");
    let mut connection = Connection::open(client.to).await;
    connection.send(head.as_bytes()).await;
    for _ in 0..5 {
        connection.send(&[b"100000\r\n", &*vec![b' '; 1024 * 1024], b"\r\n"].concat()).await;
    }
    assert_eq!(connection.answer().await.unwrap().status(), 413);
    // Promised, and not sent in time.
    let slow = String::from_utf8(client.request("POST", "", b"{"))
        .unwrap()
        .replace("Content-Length: 1\r\n", "Content-Length: 9\r\n");
    let mut connection = Connection::open(client.to).await;
    connection.send(slow.as_bytes()).await;
    assert_eq!(connection.answer().await.unwrap().status(), 408);
}

#[tokio::test]
async fn one_request_is_never_taken_for_two() {
    let world = World::start().await;
    let client = world.alice().await;
    let host = client.to;
    let smuggled = format!("{:A<92}", "");
    let both = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ALICE}\r\nContent-Type: application/json\r\n\
         Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5c\r\n{smuggled}\r\n0\r\n\r\n"
    );
    let folded = format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\n{{}}");
    let two_lengths =
        format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}");
    for bytes in [both, folded, two_lengths] {
        let mut connection = Connection::open(host).await;
        connection.send(bytes.as_bytes()).await;
        assert_eq!(connection.answer().await.unwrap().status(), 400, "{bytes}");
        assert!(connection.is_closed().await, "{bytes}");
    }
}

#[tokio::test]
async fn http_2_is_served_under_the_same_rules() {
    let world = World::start().await;
    let client = world.alice().await;
    let socket = tokio::net::TcpStream::connect(client.to).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (mut send, connection) = handshake.await.unwrap();
    world.tasks.spawn(connection);
    let good = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let mut status = async |authority: &str, token: &str| {
        let request = http::Request::post(format!("http://{authority}/mcp"))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("mcp-session-id", client.session.as_ref().unwrap())
            .body(Full::<bytes::Bytes>::from(good.clone()))
            .unwrap();
        send.send_request(request).await.unwrap().status().as_u16()
    };
    let own = client.to.to_string();
    assert_eq!(status(&own, ALICE).await, 200);
    assert_eq!(status("evil.example", ALICE).await, 403);
    assert_eq!(status(&own, "nobody").await, 401);
}

/// One fault at a time, and pairs of faults: of two, the earlier check speaks.
#[tokio::test]
async fn checks_come_in_their_order() {
    let world = World::start().await;
    let client = world.alice().await;
    let good = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let request = |edits: &[(&str, &str)], body: &[u8]| {
        let mut text = String::from_utf8(client.request("POST", "MCP-Protocol-Version: 2025-11-25\r\n", body)).unwrap();
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
        text
    };
    let host = format!("Host: {}", client.to);
    let session = format!("Mcp-Session-Id: {}\r\n", client.session.as_ref().unwrap());
    let path = ("/mcp", "/other");
    let method = ("POST", "PUT");
    let evil_host = (&*host, "Host: evil.example");
    let origin = (&*host, &*format!("{host}\r\nOrigin: https://evil.example"));
    let token = ("Bearer token-of-alice", "Bearer nobody");
    let media = ("application/json\r\nContent", "text/plain\r\nContent");
    let accept = ("application/json, text/event-stream", "text/html");
    let version = ("2025-11-25", "2025-03-26");
    let no_session = (&*session, "");
    let unknown_session = (&*session, "Mcp-Session-Id: x\r\n");
    let faults: [(&str, (&str, &str), u16); 11] = [
        ("path", path, 404),
        ("method", method, 405),
        ("host", evil_host, 403),
        ("origin", origin, 403),
        ("token", token, 401),
        ("media type", media, 415),
        ("accept", accept, 406),
        ("version", version, 400),
        ("no session", no_session, 400),
        ("unknown session", unknown_session, 404),
        ("nothing", ("x-nothing", "x-nothing"), 200),
    ];
    let send = async |text: String| {
        let mut connection = Connection::open(client.to).await;
        connection.send(text.as_bytes()).await;
        connection.answer().await.unwrap()
    };
    for (at, (name, edit, status)) in faults.iter().enumerate() {
        let edits: &[_] = if *name == "nothing" { &[] } else { &[*edit] };
        let answer = send(request(edits, good.as_bytes())).await;
        assert_eq!(answer.status(), *status, "{name}");
        for (later, other, _) in &faults[at + 1..10.max(at + 1)] {
            let overlap = other.0 == edit.0;
            if !overlap {
                assert_eq!(
                    send(request(&[*edit, *other], good.as_bytes())).await.status(),
                    *status,
                    "{name} and {later}"
                );
            }
        }
        // A body that is no JSON comes after the headers that say what it is, and before all that is in it.
        let expected = if *status >= 401 && *name != "unknown session" { *status } else { 400 };
        assert_eq!(send(request(edits, b"{")).await.status(), expected, "{name} and no JSON");
    }
    let answer = send(request(&[method], good.as_bytes())).await;
    assert_eq!(answer.head.header("allow"), Some("GET, POST, DELETE"));
    let answer = send(request(&[token], good.as_bytes())).await;
    assert_eq!(answer.head.header("www-authenticate"), Some("Bearer realm=\"longhaul\", error=\"invalid_token\""));
    let answer = send(request(&[version], good.as_bytes())).await;
    assert_eq!((answer.code(), &answer.json()["id"]), (Some(-32022), &json!(1)));
    let data = &answer.json()["error"]["data"];
    assert_eq!(data, &json!({"supported": ["2026-07-28", "2025-11-25", "2025-06-18"], "requested": "2025-03-26"}));
}

#[tokio::test]
async fn nobody_gets_in_without_a_token_of_their_own() {
    let world = World::start().await;
    let client = world.alice().await;
    let good = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let plain = String::from_utf8(client.request("POST", "", good.as_bytes())).unwrap();
    let header = format!("Authorization: Bearer {ALICE}\r\n");
    for (replacement, path) in [
        (String::new(), "/mcp"),
        (String::new(), "/mcp?access_token=token-of-alice"),
        (format!("{header}{header}"), "/mcp"),
        (format!("Authorization: Bearer {ALICE}\r\nAuthorization: Bearer {BOB}\r\n"), "/mcp"),
        ("Authorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n".into(), "/mcp"),
        ("Authorization: Basic token-of-alice\r\n".into(), "/mcp"),
    ] {
        for method in ["POST", "GET", "DELETE"] {
            let text = plain.replace(&header, &replacement).replacen("/mcp", path, 1).replacen("POST", method, 1);
            let mut connection = Connection::open(client.to).await;
            connection.send(text.as_bytes()).await;
            let head = connection.head().await.unwrap();
            assert_eq!(head.status, 401, "{text}");
            assert!(head.header("www-authenticate").unwrap().starts_with("Bearer "));
        }
    }
    let mut nobody = Client::new(client.to, "nobody");
    nobody.session = client.session.clone();
    assert_eq!(nobody.call("ping", json!({})).await.status(), 401);
}

#[tokio::test]
async fn a_get_without_streams_or_with_a_broken_event_id_is_refused() {
    let world = World::start().await;
    let client = world.alice().await;
    let status = async |client: &Client, extra: &str| client.send("GET", extra, b"").await.head().await.unwrap().status;
    assert_eq!(status(&client.accepting("application/json"), "").await, 406);
    assert_eq!(status(&client, "MCP-Protocol-Version: 2025-03-26\r\n").await, 400);
    assert_eq!(status(&client, "Last-Event-ID: x\r\n").await, 400);
    assert_eq!(status(&client, "Last-Event-ID: \r\n").await, 200);
    let mut without = client.clone();
    without.session = None;
    assert_eq!(status(&without, "").await, 400);
    for method in ["HEAD", "OPTIONS", "PATCH"] {
        assert_eq!(client.send(method, "", b"").await.head().await.unwrap().status, 405, "{method}");
    }
}

/// A connection that is closed with unread bytes is reset, and the client may never see the answer.
#[tokio::test]
async fn what_is_refused_unread_is_read_on_so_that_its_sender_hears_the_answer() {
    let world = World::start().await;
    let client = world.alice().await;
    let body = vec![b' '; 6 * 1024 * 1024];
    for _ in 0..8 {
        let mut connection = client.send("POST", "", &body).await;
        assert_eq!(connection.answer().await.expect("the answer was lost").status(), 413);
        let stranger = Client { token: "nobody", ..client.clone() };
        let mut connection = stranger.send("POST", "", &body).await;
        assert_eq!(connection.answer().await.expect("the answer was lost").status(), 401);
    }
}
