//! Scans of trees like those of the kernel.

mod causes;
mod churn;
mod colours;
mod hot;
