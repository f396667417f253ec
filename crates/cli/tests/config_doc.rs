//! docs/CONFIG.md is made from the declarations of the keys.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::path::Path;

use longhaul_cli::config::Config;

const HEAD: &str = "\
# Config

Made from `crates/cli/src/config.rs`; a test keeps it so.

Defaults < the file (`--config FILE` or `LONGHAUL_CONFIG`, TOML) < `LONGHAUL_*` < `--set KEY=VALUE`. A variable is
`LONGHAUL_` and the key in capitals, with `__` between a table and its key: `LONGHAUL_GATEWAY__LISTEN`. Lists are written
`[a, b]` there. An unknown key is refused by its name, with exit code 64. `longhaul config print` shows what is in
force, secrets hidden, and says on stderr which roles would not start with it, and why.
`longhaul dev` has defaults of its own for where to listen and how to log.
";

/// The keys of `structure`: name and documentation, in order of declaration.
fn keys(source: &str, structure: &str) -> Vec<(String, String)> {
    let body = source.split_once(&format!("pub struct {structure} {{")).unwrap().1;
    let (mut keys, mut doc) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            write!(doc, "{}{}", if doc.is_empty() { "" } else { " " }, text.trim()).unwrap();
        } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            let name = name.trim_start_matches("r#");
            assert!(!doc.is_empty(), "{structure}.{name} has no documentation");
            keys.push((name.to_owned(), std::mem::take(&mut doc)));
        }
    }
    keys
}

fn table(page: &mut String, title: &str, keys: &[(String, String)], defaults: Option<&toml::Value>) {
    write!(page, "\n## {title}\n\n| Key | Default | Meaning |\n|---|---|---|\n").unwrap();
    for (name, doc) in keys {
        let default = defaults.map(|all| all.get(name));
        if let Some(Some(toml::Value::Table(table))) = default
            && !table.is_empty()
        {
            continue;
        }
        let default = default.flatten().map_or_else(|| "–".to_owned(), |value| format!("`{value}`"));
        writeln!(page, "| `{name}` | {default} | {} |", doc.replace('|', "\\|")).unwrap();
    }
}

#[test]
fn the_page_lists_every_key() {
    let cli = include_str!("../src/config.rs");
    let admission = include_str!("../src/admission.rs");
    let callers = include_str!("../src/callers.rs");
    let services = include_str!("../src/services.rs");
    let budgets = include_str!("../src/budgets.rs");
    let runner = include_str!("../../runner/src/config.rs");
    let defaults = toml::Value::try_from(Config::default()).unwrap();
    let mut page = HEAD.to_owned();
    table(&mut page, "Shared", &keys(cli, "Config"), Some(&defaults));
    for (title, structure) in
        [("gateway", "GatewayConfig"), ("taskstore", "TaskstoreConfig"), ("runner", "RunnerConfig")]
    {
        table(&mut page, &format!("`[{title}]`"), &keys(cli, structure), defaults.get(title));
    }
    table(&mut page, "`[rate_limits]`", &keys(admission, "RateLimitsConfig"), defaults.get("rate_limits"));
    table(&mut page, "`[guardrails]`", &keys(admission, "GuardrailsConfig"), defaults.get("guardrails"));
    table(&mut page, "`[guardrails.webhook]`", &keys(admission, "WebhookConfig"), None);
    table(&mut page, "`[tools.NAME]`", &keys(admission, "ToolConfig"), None);
    table(&mut page, "`[[gateway.credentials]]`", &keys(cli, "CredentialConfig"), None);
    table(&mut page, "`[[gateway.issuers]]`", &keys(callers, "IssuerConfig"), None);
    table(&mut page, "`[service_tokens]`", &keys(services, "ServiceTokensConfig"), None);
    table(&mut page, "`[tls]`", &keys(services, "TlsConfig"), None);
    table(&mut page, "`[[budgets]]`", &keys(budgets, "BudgetConfig"), None);
    table(&mut page, "`[[runner.upstreams]]`", &keys(runner, "UpstreamConfig"), None);
    table(&mut page, "`[runner.upstreams.tools.NAME]`", &keys(runner, "ToolConfig"), None);
    let agents = include_str!("../../runner/src/agent/config.rs");
    table(&mut page, "`[[runner.providers]]`", &keys(agents, "ProviderConfig"), None);
    table(&mut page, "`[[runner.agents]]`", &keys(agents, "AgentConfig"), None);
    table(&mut page, "`[runner.agents.prices]`", &keys(agents, "Prices"), None);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIG.md");
    if std::fs::read_to_string(&file).unwrap_or_default() != page {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("CONFIG.md");
        std::fs::write(&made, page).unwrap();
        panic!("docs/CONFIG.md is out of date: cp {} {}", made.display(), file.display());
    }
}
