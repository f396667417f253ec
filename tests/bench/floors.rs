//! The floors' side of the benchmark: their processes, and a caller for each.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use tokio::process::Command;

use crate::client::Http;
use crate::processes::Process;
use crate::sql;

/// As long as the product's echo.
pub const ECHO_BODY: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}"#;

/// What the product cannot be faster than, if it does the same alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// A bare axum echo that reads the JSON-RPC envelope.
    Axum,
    /// The same, with a unary call to a bare tonic echo in another process.
    AxumTonic,
    /// One statement: a row and its audit row.
    Insert,
    /// Three statements: a row, its completion, and a read of it.
    WholeTask,
    /// One statement: a row by its key.
    Select,
}

impl Floor {
    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Axum => "bare axum echo",
            Self::AxumTonic => "bare axum → tonic echo",
            Self::Insert => "SQL insert + audit",
            Self::WholeTask => "SQL insert, complete, select",
            Self::Select => "SQL select by key",
        }
    }
}

/// Callers of every floor.
pub struct Floors {
    /// The axum process.
    pub axum: Process,
    /// Where it listens.
    pub address: SocketAddr,
    tonic: Process,
    /// Connections to `/echo`.
    pub echo: Vec<Http>,
    /// Connections to `/hop`.
    pub hop: Vec<Http>,
    /// Callers of the floor's own database.
    pub sql: Vec<sql::Caller>,
    /// A number for each read.
    pub turn: Cell<u64>,
}

impl Floors {
    /// Starts the floors' processes from this program's own file.
    pub async fn start(folder: &Path) -> Result<Self> {
        let this_program = std::env::current_exe()?;
        let mut tonic = Process::start("floor-tonic", Command::new(&this_program).arg("floor-tonic"), folder)?;
        let hop = format!("http://{}", tonic.first_line().await?);
        let mut axum = Process::start("floor-axum", Command::new(&this_program).args(["floor-axum", &hop]), folder)?;
        let address = axum.first_line().await?.parse()?;
        Ok(Self { axum, address, tonic, echo: Vec::new(), hop: Vec::new(), sql: Vec::new(), turn: Cell::new(0) })
    }

    /// Connects as many callers.
    pub async fn connect(&mut self, postgres: &str, rows: u64, callers: usize) -> Result<()> {
        for _ in 0..callers {
            self.echo.push(Http::open(self.address, "/echo").await?);
            self.hop.push(Http::open(self.address, "/hop").await?);
        }
        self.sql = sql::callers(postgres, rows, callers as u64).await?;
        Ok(())
    }

    /// An error if one of the processes has ended.
    pub fn check(&mut self) -> Result<()> {
        self.axum.check()?;
        self.tonic.check()
    }
}
