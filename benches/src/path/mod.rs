//! The path of a write, step by step: instructions against budgets, and times as ratios.

pub mod asks;
pub mod cases;
pub mod miss;
pub mod pair;
pub mod ratios;
pub mod report;
mod tray;
