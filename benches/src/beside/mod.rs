//! NetVM beside other systems, in turns between the same two processors.
//!
//! - [`programs`] runs programs of others, and reads what they print;
//! - [`rows`] says what a comparison is, [`compare`] takes the ratios out of all turns;
//! - [`table`] and [`plot`] show them; [`options`] are those of all such programs.

pub mod compare;
pub mod options;
pub mod plot;
pub mod programs;
pub mod rows;
pub mod table;
