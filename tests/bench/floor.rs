//! The floors over the network: a bare axum echo, and one that goes on to a bare tonic echo in another process.
//! Each ends with its standard input, so with the benchmark, however that ends.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use bytes::{Buf, BufMut, Bytes};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

const ECHO: &str = "/bench.Echo/Echo";

/// A JSON-RPC request as far as a server must read it.
#[derive(Deserialize, Serialize)]
struct Envelope {
    jsonrpc: String,
    id: Box<RawValue>,
    method: String,
    params: Box<RawValue>,
}

/// `/echo` answers itself, `/hop` through the tonic echo at `hop`.
pub async fn axum(hop: String) -> Result<()> {
    let channel = Channel::from_shared(hop)?.tcp_nodelay(true).connect_lazy();
    let app = Router::new()
        .route("/echo", post(async |Json(request): Json<Envelope>| Json(request)))
        .route("/hop", post(through))
        .with_state(tonic::client::Grpc::new(channel));
    let listener = announced().await?;
    let serve = axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))), app);
    tokio::select! {
        served = serve => Ok(served?),
        () = end_of_input() => Ok(()),
    }
}

async fn through(
    State(mut grpc): State<tonic::client::Grpc<Channel>>,
    Json(request): Json<Envelope>,
) -> Result<Json<Envelope>, StatusCode> {
    let failed = |_| StatusCode::BAD_GATEWAY;
    let payload = Bytes::copy_from_slice(request.params.get().as_bytes());
    grpc.ready().await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let answer = grpc
        .unary(Request::new(payload), PathAndQuery::from_static(ECHO), Raw)
        .await
        .map_err(|_| StatusCode::BAD_GATEWAY)?;
    let params = serde_json::from_slice(&answer.into_inner()).map_err(failed)?;
    Ok(Json(Envelope { params, ..request }))
}

/// The unary echo.
pub async fn tonic() -> Result<()> {
    let incoming = TcpIncoming::from(announced().await?).with_nodelay(Some(true));
    let serve = Server::builder().add_service(Echo).serve_with_incoming(incoming);
    tokio::select! {
        served = serve => Ok(served?),
        () = end_of_input() => Ok(()),
    }
}

/// Listens on a free port and prints the address for the parent to read.
async fn announced() -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(listener)
}

async fn end_of_input() {
    let mut rest = Vec::new();
    drop(tokio::io::stdin().read_to_end(&mut rest).await);
}

#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "bench.Echo";
}

impl Service<HttpRequest<Body>> for Echo {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        Box::pin(async { Ok(tonic::server::Grpc::new(Raw).unary(Answer, request).await) })
    }
}

struct Answer;

impl Service<Request<Bytes>> for Answer {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

/// Messages that are bytes: nothing to encode.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
