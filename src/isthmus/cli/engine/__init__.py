"""What `isthmus reproduce` runs on: parts in processes of their own, stored as they are done."""
