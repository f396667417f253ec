//! Logs, traces and metrics of a process.
//!
//! Logs are lines on stderr. Traces and metrics go out by OTLP when the standard `OTEL_EXPORTER_OTLP_*` variables name
//! an endpoint; metrics can be scraped at `/metrics` in any case.

use anyhow::Context as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prometheus::Registry;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::config::{LogFormat, Wrong};

/// The exporter's own connections must not be traced: each export would make spans to export.
const NO_FEEDBACK: &str = "info,h2=off,hyper=off,hyper_util=off,tonic=off,tower=off,reqwest=off,opentelemetry=off";

/// What was set up; shut it down before the process ends, or the last spans are lost.
#[derive(Debug)]
pub struct Telemetry {
    registry: Registry,
    meters: SdkMeterProvider,
    tracers: Option<SdkTracerProvider>,
}

/// Reads `log`.
pub(crate) fn filter(log: &str) -> Result<EnvFilter, Wrong> {
    EnvFilter::try_new(log).map_err(|error| Wrong(format!("log: {log:?} is not a filter: {error}")))
}

impl Telemetry {
    /// Sets up the process's telemetry, once; `variables` are the process's environment.
    pub fn start(log: &str, format: LogFormat, variables: &[(String, String)]) -> anyhow::Result<Self> {
        let endpoint = |signal: &str| {
            let signal = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
            variables
                .iter()
                .any(|(name, value)| (*name == signal || name == "OTEL_EXPORTER_OTLP_ENDPOINT") && !value.is_empty())
        };
        let named = variables.iter().any(|(name, _)| name == "OTEL_SERVICE_NAME");
        let resource = Resource::builder();
        let resource = if named { resource } else { resource.with_service_name("longhaul") }.build();

        let registry = Registry::new();
        let scrape = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .context("the metrics exporter")?;
        let mut meters = SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(scrape);
        if endpoint("METRICS") {
            let exporter = MetricExporter::builder().with_tonic().build().context("the OTLP metrics exporter")?;
            meters = meters.with_periodic_exporter(exporter);
        }
        let meters = meters.build();
        opentelemetry::global::set_meter_provider(meters.clone());

        let tracers = if endpoint("TRACES") {
            let exporter = SpanExporter::builder().with_tonic().build().context("the OTLP trace exporter")?;
            Some(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
        } else {
            None
        };
        let spans = tracers.as_ref().map(|tracers| {
            tracing_opentelemetry::layer()
                .with_tracer(tracers.tracer("longhaul"))
                .with_filter(EnvFilter::new(NO_FEEDBACK))
        });
        let filter = filter(log)?;
        let lines = match format {
            LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
            LogFormat::Pretty => tracing_subscriber::fmt::layer().compact().with_writer(std::io::stderr).boxed(),
        };
        tracing_subscriber::registry().with(spans).with(lines.with_filter(filter)).try_init()?;
        Ok(Self { registry, meters, tracers })
    }

    /// Where `/metrics` reads.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Sends what is left. Blocks: call it off the async threads.
    pub fn stop(self) {
        if let Some(Err(error)) = self.tracers.map(|tracers| tracers.shutdown()) {
            tracing::warn!(%error, "the last spans were lost");
        }
        if let Err(error) = self.meters.shutdown() {
            tracing::debug!(%error, "the last metrics were lost");
        }
    }
}
