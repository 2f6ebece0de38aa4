//! Page tables against their slow twin.

mod load;
mod tables;
mod twin;
