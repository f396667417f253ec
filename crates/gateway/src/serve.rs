//! Connections: accepted, bounded, and ended within a time limit.
//!
//! Not `axum::serve`: that sets no timer, so a client may take for ever to send a header, and its shutdown waits without
//! limit for streams to end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::config::Config;

/// How long a connection may be idle between requests, or take to a later request's header. Longer than what clients
/// and proxies keep theirs for, so that it is they who close it and no request is lost to the race.
const IDLE: Duration = Duration::from_secs(120);
/// The largest header section, in bytes.
const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// HTTP/2 streams of one connection at a time.
const STREAMS_MAX: u32 = 100;
/// HTTP/2 pings to a silent client, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A silent connection is asked whether anybody is there after so long, so often, so many times.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES_MAX: u32 = 3;
/// How long what was sent, probes too, may stay unacknowledged. Streams say something every 15 s ([`Pace::keep_alive`]), so one
/// whose client has vanished from the network ends within a minute, and what it carried goes to another.
///
/// [`Pace::keep_alive`]: crate::Pace::keep_alive
const UNHEARD_MAX: Duration = Duration::from_secs(30);
/// After an error of the listener itself, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until `drain` fires, and ends them then; those that are left when `cut` fires are cut.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    connections: &TaskTracker,
    drain: &CancellationToken,
    cut: &CancellationToken,
) {
    let room = Arc::new(Semaphore::new(config.connections_max));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(HEADER_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    let pace = config.pace;
    loop {
        let accepted = tokio::select! {
            biased;
            () = drain.cancelled() => break,
            accepted = async {
                // Beyond the maximum, connections wait in the listener's own queue.
                let permit = room.clone().acquire_owned().await;
                (listener.accept().await, permit)
            } => accepted,
        };
        let (socket, permit) = match accepted {
            (Ok((socket, _)), Ok(permit)) => (socket, permit),
            (Ok(_), Err(_)) => break,
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Costs latency if it fails, nothing else.
        let _ = socket.set_nodelay(true);
        if let Err(error) = notice_loss(&socket) {
            tracing::debug!(%error, "the loss of a client will be noticed late");
        }
        let (builder, router) = (builder.clone(), router.clone());
        let (drain, cut) = (drain.clone(), cut.clone());
        connections.spawn(async move {
            let _permit = permit;
            let has_spoken = Arc::new(AtomicBool::new(false));
            let service = {
                let has_spoken = has_spoken.clone();
                service_fn(move |request: hyper::Request<Incoming>| {
                    has_spoken.store(true, Ordering::Relaxed);
                    router.clone().oneshot(request)
                })
            };
            let io = TokioIo::new(Unstalled::new(socket, pace.write_stall));
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            // Until the first request, neither version of the protocol keeps time.
            let mut silence = std::pin::pin!(tokio::time::sleep(pace.first_request));
            let (mut draining, mut watching) = (false, true);
            loop {
                tokio::select! {
                    biased;
                    result = connection.as_mut() => {
                        if let Err(error) = result {
                            tracing::debug!(error, "a connection broke");
                        }
                        break;
                    }
                    () = cut.cancelled() => break,
                    () = drain.cancelled(), if !draining => {
                        draining = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    () = silence.as_mut(), if watching => {
                        watching = false;
                        if !has_spoken.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
            }
        });
    }
}

/// Has the system end the connection when the other side has vanished without a word.
fn notice_loss(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES_MAX);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNHEARD_MAX))?;
    Ok(())
}

/// A socket that fails when the other side has not read for too long.
struct Unstalled {
    socket: TcpStream,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Unstalled {
    fn new(socket: TcpStream, patience: Duration) -> Self {
        Self { socket, patience, stalled: None }
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.socket), cx) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |socket, cx| socket.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_client_that_vanishes_is_noticed_within_a_minute() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        notice_loss(&socket).unwrap();
        let set = SockRef::from(&socket);
        assert!(set.keepalive().unwrap());
        assert_eq!(set.tcp_user_timeout().unwrap(), Some(UNHEARD_MAX));
        assert_eq!(set.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        assert_eq!(set.tcp_keepalive_interval().unwrap(), PROBE_EVERY);
        assert_eq!(set.tcp_keepalive_retries().unwrap(), PROBES_MAX);
        let minute = Duration::from_secs(60);
        // Whether it had something to hear when it vanished or not.
        assert!(crate::Pace::default().keep_alive + UNHEARD_MAX < minute);
        assert!(PROBE_AFTER + PROBE_EVERY * PROBES_MAX < minute && PROBE_AFTER + UNHEARD_MAX < minute);
    }
}
