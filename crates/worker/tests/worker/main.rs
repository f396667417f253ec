//! A worker against a task-store in memory, over the real gRPC, under a clock that jumps.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod liveness;
#[cfg(test)]
mod outcome;
#[cfg(test)]
mod store;
#[cfg(test)]
mod tasks;
