//! The programs of this package as a person meets them: started on folders, spoken to with files and signals.

mod cgroups;
mod files;
mod harness;
mod programs;
mod restart;
mod samples;
mod users;
