//! Serves the demo tools, prompt and resource: `worker TASK_STORE_URL SERVICE_TOKEN_FILE [LISTEN_ADDRESS]`, until Ctrl-C.
//!
//! With an address it takes calls that are not tasks too.

use std::error::Error;

use longhaul_worker::{Config, Worker, demo};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(token_file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: worker TASK_STORE_URL SERVICE_TOKEN_FILE [LISTEN_ADDRESS]".into());
    };
    let token = std::fs::read_to_string(&token_file).map_err(|error| format!("{token_file}: {error}"))?;
    let mut config = Config::connect(&url, token.trim())?;
    if let Some(address) = arguments.next() {
        config = config.listen(address.parse()?).await?;
    }

    let drain = CancellationToken::new();
    let end = drain.clone();
    let worker = Worker::new(config)
        .with_tools(demo::tools())
        .with_tools(demo::prompts())
        .with_tools(demo::resources())
        .run(drain);
    tokio::pin!(worker);
    tokio::select! {
        ended = &mut worker => ended?,
        pressed = tokio::signal::ctrl_c() => {
            pressed?;
            end.cancel();
            worker.await?;
        }
    }
    Ok(())
}
