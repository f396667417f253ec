//! Gateways over real sockets, a task-store in memory, and a scripted worker behind the real gRPC seam.

mod bad_input;
mod calls;
mod client;
mod drain;
mod sessions;
mod tasks;
mod tools;
mod world;
