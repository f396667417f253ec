//! As much of Redis's protocol as two questions need.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::measure::{micros, percentiles};

const PINGS: usize = 1000;

/// A connection to Redis, what it says of itself, and the time of a round trip.
pub struct Redis {
    stream: BufReader<TcpStream>,
    /// Its version.
    pub version: String,
    /// A `PING` and its answer, in microseconds: half of them take no longer.
    pub ping_p50_us: u64,
    /// Likewise, but 99 of 100.
    pub ping_p99_us: u64,
}

/// Asks the server at `url`, which is `redis://HOST:PORT/`.
pub async fn ask(url: &str) -> Result<Redis> {
    let address = url.strip_prefix("redis://").map(|rest| rest.trim_end_matches('/')).context("--redis")?;
    let stream = TcpStream::connect(address.parse::<SocketAddr>()?).await?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let asked = Instant::now();
        ping(&mut stream).await?;
        took.push(micros(asked.elapsed()));
    }
    stream.write_all(b"INFO server\r\n").await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let length: usize = line.trim_start_matches('$').trim_end().parse()?;
    let mut info = vec![0; length];
    stream.read_exact(&mut info).await?;
    stream.read_line(&mut line).await?;
    let info = String::from_utf8(info)?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).context("no redis_version")?;
    let [ping_p50_us, ping_p99_us] = percentiles(&mut took, [50, 99]);
    Ok(Redis { version: version.to_owned(), ping_p50_us, ping_p99_us, stream })
}

impl Redis {
    /// One round trip.
    pub async fn ping(&mut self) -> Result<()> {
        ping(&mut self.stream).await
    }
}

async fn ping(stream: &mut BufReader<TcpStream>) -> Result<()> {
    stream.write_all(b"PING\r\n").await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    ensure!(line == "+PONG\r\n", "Redis answered {line:?}");
    Ok(())
}
