//! Composition root: the only file that knows both houses.

fn main() {}
