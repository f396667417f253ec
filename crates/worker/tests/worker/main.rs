//! A worker against a task-store in memory, over the real gRPC, under a clock that jumps.

#[cfg(test)]
mod again;
#[cfg(test)]
mod asking;
#[cfg(test)]
mod becoming;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod liveness;
#[cfg(test)]
mod offers;
#[cfg(test)]
mod outcome;
#[cfg(test)]
mod parked;
#[cfg(test)]
mod spending;
#[cfg(test)]
mod store;
#[cfg(test)]
mod tasks;
